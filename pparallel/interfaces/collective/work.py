"""What an operation combines with, and the handle of one that runs."""

from __future__ import annotations

import contextvars
import enum
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, TypeVar

from typing_extensions import override

from pparallel.errors import CallTimeoutError

if TYPE_CHECKING:
    from torch import Tensor

R = TypeVar("R", covariant=True)

_numbers = itertools.count()


class ReduceOp(enum.Enum):
    """How the tensors of several members become one, element by element.

    ``AVG`` takes real and complex numbers, ``MIN`` and ``MAX`` whatever has an order, and the
    bitwise ones integers and truth values.
    """

    SUM = "sum"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"

    def check(self, tensor: Tensor) -> None:
        """Refuse a tensor that this does not apply to, before anything is sent.

        Raises:
            ValueError: the tensor's dtype does not fit.
        """
        if self is ReduceOp.SUM or self is ReduceOp.PRODUCT:
            return
        dtype = tensor.dtype
        numbers = dtype.is_floating_point or dtype.is_complex
        match self:
            case ReduceOp.AVG:
                fits = numbers
            case ReduceOp.MIN | ReduceOp.MAX:
                fits = not dtype.is_complex
            case _:
                fits = not numbers
        if not fits:
            raise ValueError(f"{self.name} does not apply to {dtype}")

    def into(self, total: Tensor, other: Tensor) -> None:
        """Combine *other* into *total*, in place; ``AVG`` adds, for :meth:`finish` divides."""
        match self:
            case ReduceOp.SUM | ReduceOp.AVG:
                total.add_(other)
            case ReduceOp.PRODUCT:
                total.mul_(other)
            case ReduceOp.MIN:
                total.copy_(total.minimum(other))
            case ReduceOp.MAX:
                total.copy_(total.maximum(other))
            case ReduceOp.BAND:
                total.bitwise_and_(other)
            case ReduceOp.BOR:
                total.bitwise_or_(other)
            case ReduceOp.BXOR:
                total.bitwise_xor_(other)

    def finish(self, total: Tensor, count: int) -> None:
        """Do what is left when *count* tensors were combined into *total*."""
        if self is ReduceOp.AVG:
            total.div_(count)


class Work(ABC, Generic[R]):
    """An operation that runs; its tensors belong to it until :meth:`wait` returns."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> R:
        """Wait until it is done and return its result.

        ``None`` waits as long as the config says; the operation has failed then. After a
        *timeout* of the caller's own it goes on, and may be waited for again.

        Raises:
            CallTimeoutError: it took longer.
            PeerLostError: a member that it needs is gone.
            ClosedError: the collective was closed.
        """

    @abstractmethod
    def is_completed(self) -> bool:
        """Return whether :meth:`wait` would return, or raise, at once."""


class FutureWork(Work[R]):
    """An operation that some thread carries out, by :meth:`run`; others wait for it."""

    def __init__(self, operation: Callable[[], R]) -> None:
        self._operation: Callable[[], R] | None = operation
        self._future: Future[R] = Future()

    @override
    def wait(self, timeout: float | None = None) -> R:
        try:
            return self._future.result(timeout)
        except TimeoutError:
            if timeout is None or self._future.done():
                raise  # the operation's own
            raise CallTimeoutError("a collective operation", timeout) from None

    @override
    def is_completed(self) -> bool:
        return self._future.done()

    def run(self) -> None:
        """Carry it out, once; what it raises is raised where it is waited for."""
        operation, self._operation = self._operation, None
        assert operation is not None
        try:
            result = operation()
        except BaseException as error:  # noqa: BLE001 - raised where the work is waited for
            del operation
            self._future.set_exception(error)
        else:
            # Its tensors are the caller's, and to free one lets other threads run: if then the
            # program ended, which waits for no daemon, torch would abort it.
            del operation
            self._future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Raise *error* where it is waited for: it is not carried out."""
        self._future.set_exception(error)


class BackgroundWork(FutureWork[R]):
    """An operation that runs in a thread of its own."""

    def __init__(self, operation: Callable[[], R]) -> None:
        super().__init__(operation)
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run,
            args=(self.run,),
            name=f"collective-{next(_numbers)}",
            daemon=True,
        ).start()
