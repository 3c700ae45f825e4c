"""Messages and those who wait for them: what is sent goes to the first receive that it fits."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from typing_extensions import override

from pparallel.errors import CallTimeoutError
from pparallel.interfaces.collective import Work
from pparallel.runtime.future import fail, settle

if TYPE_CHECKING:
    import torch
    from torch import Tensor

S = TypeVar("S", int, int | None)
T = TypeVar("T")


class Message(Protocol):
    """What was sent."""

    def give(self, target: Tensor) -> None:
        """Copy it into *target*; once.

        Raises:
            ValueError: it does not fit.
        """


class Receive(Work[int]):
    """A tensor that waits for a message, and its receiver's work.

    Args:
        target: what to fill.
        source: the rank of the sender, or ``None``.
        tag: the message's tag.
        timeout: seconds.
        give_up: fails a receive unless its message has come; called when its time is over.
    """

    def __init__(
        self,
        target: Tensor,
        source: int | None,
        tag: int,
        timeout: float,
        give_up: Callable[[Receive, BaseException], None],
    ) -> None:
        finish(target)
        self.source, self.tag = source, tag
        self._target = target
        self._timeout = timeout
        self._give_up = give_up
        self._future: Future[int] = Future()

    @override
    def wait(self, timeout: float | None = None) -> int:
        limit = self._timeout if timeout is None else timeout
        try:
            return self._future.result(limit)
        except TimeoutError:
            if self._future.done():
                return self._future.result()  # it came just now, or the failure is its own
        sender = "anyone" if self.source is None else f"rank {self.source}"
        error = CallTimeoutError(f"a receive from {sender}", limit)
        if timeout is not None:
            raise error
        self._give_up(self, error)
        return self._future.result()

    @override
    def is_completed(self) -> bool:
        return self._future.done()

    def take(self, message: Message, source: int) -> None:
        """Take the message that *source* sent; in the thread of whichever came second."""
        try:
            message.give(self._target)
        except BaseException as error:  # noqa: BLE001 - raised where the message is waited for
            fail(self._future, error)
        else:
            settle(self._future, source)

    def fail(self, error: BaseException) -> None:
        """Raise *error* where this is waited for."""
        fail(self._future, error)


class Queues(Generic[T]):
    """Items by tag and source, each queue in order, and with an order over all."""

    def __init__(self) -> None:
        self._queues: dict[tuple[int, int | None], deque[tuple[int, T]]] = {}
        self._numbers = itertools.count()

    def add(self, tag: int, source: int | None, item: T) -> None:
        """Put *item* last."""
        queue = self._queues.setdefault((tag, source), deque())
        queue.append((next(self._numbers), item))

    def take(self, tag: int, sources: Iterable[S]) -> tuple[S, T] | None:
        """Take the first item of *tag* from one of *sources*, if there is one; say from which."""
        there = [source for source in sources if (tag, source) in self._queues]
        if not there:
            return None
        source = min(there, key=lambda source: self._queues[tag, source][0][0])
        queue = self._queues[tag, source]
        _, item = queue.popleft()
        if not queue:
            del self._queues[tag, source]
        return source, item

    def remove(self, chosen: Callable[[int | None, T], bool]) -> list[T]:
        """Take out the items that are chosen by their source and themselves."""
        removed: list[T] = []
        for key, queue in list(self._queues.items()):
            kept = deque(each for each in queue if not chosen(key[1], each[1]))
            removed += [item for _, item in queue if chosen(key[1], item)]
            self._queues[key] = kept
            if not kept:
                del self._queues[key]
        return removed


def fill(target: Tensor, source: Tensor) -> None:
    """Copy *source* into *target*.

    Raises:
        ValueError: they have not the same shape and dtype.
    """
    check_fit(target, source)
    target.copy_(source)


def check_fit(target: Tensor, source: Tensor) -> None:
    """Refuse tensors that have not the same shape and dtype, or no elements in memory."""
    validate_device(target, source)
    if target.shape != source.shape or target.dtype != source.dtype:
        there, here = (f"{each.dtype} of shape {tuple(each.shape)}" for each in (source, target))
        raise ValueError(f"{there} was sent and does not fit into {here}")


def validate_device(*tensors: Tensor) -> None:
    """Refuse tensors on the device ``meta``: they could be filled without an error, by nothing.

    Raises:
        ValueError: one is.
    """
    if any(each.is_meta for each in tensors):
        raise ValueError("a tensor on the device 'meta' has no elements to send or to fill")


def finish(*tensors: Tensor) -> None:
    """Wait until a GPU has done what this thread asked of it: other threads' streams differ."""
    for device in {each.device for each in tensors if each.is_cuda}:
        _stream(device).synchronize()


def _stream(device: torch.device) -> torch.cuda.Stream:
    import torch

    return torch.cuda.current_stream(device)
