"""What a pool is handed: a batch of tasks, and the sink that takes their results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from typing_extensions import override

Style = Literal["one", "star", "call"]


class Batch(NamedTuple):
    """Tasks that share one function; task ``i`` is the function applied to ``items[i]``.

    An empty batch is only a question whether the pool takes work.

    Attributes:
        func: the function. The batches of one ``imap`` share one ``func`` object, so that what
            was prepared for it (its pickle) can be used again.
        items: the arguments, one entry per task.
        style: how an item is applied: ``one`` is ``func(item)``, ``star`` is ``func(*item)``,
            ``call`` is ``func(*item[0], **item[1])``.
        chunksize: how many tasks the user would hand over at once; a hint that a pool may ignore.
        continues: it belongs to a call that was accepted earlier: it is taken after ``close()``
            too, until ``join()`` has ended.
        awaited: the thread that hands it over waits for it at once: a pool in which that thread
            can do the work of another need not wake that other.
    """

    func: Callable[..., Any]
    items: Sequence[Any]
    style: Style = "one"
    chunksize: int | None = None
    continues: bool = False
    awaited: bool = False

    def bound(self, *context: Any) -> Callable[[Any], Any]:
        """Return the function that runs one item, with *context* as its first arguments."""
        func = partial(self.func, *context) if context else self.func
        if self.style == "one":
            return func
        if self.style == "star":
            return lambda item: func(*item)
        return lambda item: func(*item[0], **item[1])


class Sink(ABC):
    """Takes what becomes of the tasks of one batch, from any thread.

    No method raises an ``Exception``. Each task is reported once; what is reported after
    :meth:`abort`, by a worker that could not be stopped in time, is ignored.

    Attributes:
        piecewise: each result is wanted as soon as it is there, and the others too when one task
            has failed. Otherwise only the whole is wanted: results may be held back until the
            batch is done, and the first failure ends it.
        prompt: results are not to be held back, in however large pieces they are reported:
            somebody looks how many there are.
        observed: somebody watches: each task is reported as soon as it has ended, and
            :meth:`started` and :meth:`retried` are called too.
    """

    __slots__ = ()

    piecewise: bool = False
    prompt: bool = False
    observed: bool = False

    @property
    @abstractmethod
    def cancelled(self) -> bool:
        """Whether nothing more of the batch needs to be run."""

    @abstractmethod
    def begin(self) -> bool:
        """Say that the first task is about to start; asked once.

        Returns:
            False when the batch was cancelled or has ended: nothing of it may be run, and
            nothing is to be reported.
        """

    def started(self, index: int, worker: str) -> None:  # noqa: B027 - most sinks do not ask
        """Say that *worker* starts task *index*; not called unless ``observed``."""

    def retried(self, index: int, error: BaseException) -> None:  # noqa: B027
        """Say that task *index* is run again after *error*; not called unless ``observed``."""

    @abstractmethod
    def done(self, first: int, values: Sequence[Any]) -> None:
        """Report the values of tasks ``first``, ``first + 1``, and so on.

        The sequence belongs to the sink from then on.
        """

    @abstractmethod
    def failed(self, index: int, error: BaseException) -> None:
        """Report that task *index* raised *error*."""

    @abstractmethod
    def abort(self, error: BaseException) -> None:
        """Fail every task that has not been reported, begun or not, with *error*."""


Carry = Callable[[Batch, Sink], None]  #: ``Pool.carry``
Observer = Callable[[Carry, Batch, Sink], None]  #: hands a batch over, and watches its sink


class _NoSink(Sink):
    """Goes with an empty batch, of which there is nothing to report."""

    __slots__ = ()

    @property
    @override
    def cancelled(self) -> bool:
        return True

    @override
    def begin(self) -> bool:
        return False

    @override
    def done(self, first: int, values: Sequence[Any]) -> None: ...

    @override
    def failed(self, index: int, error: BaseException) -> None: ...

    @override
    def abort(self, error: BaseException) -> None: ...


NO_SINK = _NoSink()
