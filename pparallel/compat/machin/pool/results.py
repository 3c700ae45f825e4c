"""What the calls of a pool return at once: results to come.

The engine of :class:`BasePool` makes them and calls ``set`` for each answer of a worker. A pool on
a native one makes them ``of`` what the native pool returned.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, ClassVar, Self

from typing_extensions import override

from pparallel.interfaces.pool import Batch, PoolResult, ResultStream, Sink
from pparallel.interfaces.pool.results import Publishing
from pparallel.interfaces.pool.stream import Work

Outcome = tuple[bool, Any]  #: whether a call returned, and what it returned or raised
Cache = MutableMapping[int, Any]  #: the calls that are not done, by number
Callback = Callable[[Any], object] | None


class AsyncResult:
    """The result, to come, of ``apply_async``.

    Args:
        job: the number of the call.
        cache: the calls that are not done, by number; this one is entered.
        callback: called with the value before it can be had.
        error_callback: called with the exception before it can be had.
    """

    def __init__(
        self, job: int, cache: Cache, callback: Callback, error_callback: Callback
    ) -> None:
        self._job, self._cache = job, cache
        self._callback, self._error_callback = callback, error_callback
        self._handle: PoolResult[Any] = PoolResult(_wait, Publishing())
        self._pool: object = None
        cache[job] = self

    def ready(self) -> bool:
        """Return whether the call has ended, in whatever way."""
        return self._handle.ready()

    def successful(self) -> bool:
        """Return whether the call ended without an exception.

        Raises:
            ValueError: it has not ended.
        """
        return self._handle.successful()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the call has ended, at most *timeout* seconds."""
        self._handle.wait(timeout)

    def get(self, timeout: float | None = None) -> Any:
        """Return the result when it is there, or raise what the call raised.

        Args:
            timeout: seconds; ``None`` for no limit.

        Raises:
            multiprocessing.TimeoutError: it was not there in time.
            WorkerLostError: the worker died that ran the call.
        """
        return self._handle.get(timeout)

    def set(self, chunk: int, outcome: Outcome) -> None:
        """Take the outcome of the call; called by the pool."""
        succeeded, value = outcome
        self._settle(value, None if succeeded else value)

    @classmethod
    def of(cls, handle: PoolResult[Any]) -> Self:
        """Return the result that *handle* is, which a native pool settles."""
        made = cls.__new__(cls)
        made._handle = handle
        return made

    def keep(self, pool: object) -> Self:
        """Keep *pool* from being collected, which would end the call."""
        self._pool = pool
        return self

    def _settle(self, value: Any, error: BaseException | None) -> None:
        self._cache.pop(self._job, None)
        if error is None:
            self._handle.settle(value, self._callback)
        else:
            self._handle.settle_with_error(error, self._error_callback)


class MapResult(AsyncResult):
    """The results, to come, of ``map_async`` and ``starmap_async``.

    Args:
        job: the number of the call.
        cache: the calls that are not done, by number; this one is entered.
        chunksize: how many items a worker is handed at once.
        length: how many items there are.
        callback: called with the list of values before it can be had.
        error_callback: called with the first exception before that can be had.
    """

    def __init__(
        self,
        job: int,
        cache: Cache,
        chunksize: int,
        length: int,
        callback: Callback,
        error_callback: Callback,
    ) -> None:
        super().__init__(job, cache, callback, error_callback)
        self._chunksize = chunksize
        self._values: list[Any] = [None] * length
        self._left = -(-length // chunksize) if chunksize > 0 else 0
        if not self._left:
            self._settle(self._values, None)

    @override
    def set(self, chunk: int, outcome: Outcome) -> None:
        """Take the values of chunk number *chunk*, or what it raised, which ends the call."""
        succeeded, values = outcome
        if not succeeded:
            self._settle(None, values)
            return
        first = chunk * self._chunksize
        self._values[first : first + self._chunksize] = values
        self._left -= 1
        if not self._left:
            self._settle(self._values, None)


class IMapIterator:
    """The results of ``imap``, each as it is there, in the order of the items.

    Args:
        job: the number of the call.
        cache: the calls that are not done, by number; this one is entered.
        length: how many results there will be.
    """

    ordered: ClassVar[bool] = True

    def __init__(self, job: int, cache: Cache, length: int) -> None:
        self._job, self._cache, self._left = job, cache, length
        self._pool: object = None
        self._sink: Sink | None = None
        items = range(length)
        work = Work(self._take, _wait, len, length, 1)
        self._stream: ResultStream[Any] = ResultStream(work, items, ordered=self.ordered)
        if length:
            cache[job] = self

    def next(self, timeout: float | None = None) -> Any:
        """Return the next result, or raise what its call raised; then the iteration goes on.

        Args:
            timeout: seconds; ``None`` for no limit.

        Raises:
            multiprocessing.TimeoutError: it was not there in time; it can be asked for again.
            StopIteration: there are no more.
        """
        return self._stream.next(timeout)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._stream)

    def set(self, chunk: int, outcome: Outcome) -> None:
        """Take the outcome of item number *chunk*; called by the pool."""
        succeeded, value = outcome
        self._left -= 1
        if not self._left:
            self._cache.pop(self._job, None)
        assert self._sink is not None
        if succeeded:
            self._sink.done(chunk, (value,))
        else:
            self._sink.failed(chunk, value)

    @classmethod
    def of(cls, stream: ResultStream[Any]) -> Self:
        """Return the results that *stream* gives, which a native pool fills."""
        made = cls.__new__(cls)
        made._stream = stream
        return made

    def keep(self, pool: object) -> Self:
        """Keep *pool* from being collected, which would end the calls."""
        self._pool = pool
        return self

    def _take(self, _: Batch, sink: Sink) -> None:
        self._sink = sink  # the stream hands all items over in one batch


class IMapUnorderedIterator(IMapIterator):
    """The results of ``imap_unordered``, each as it is there, in the order in which they come."""

    ordered = False


def _wait(
    ready: Callable[[], bool], wait: Callable[[float | None], object], timeout: float | None
) -> None:
    """Wait for a result: the pool's own threads see to it."""
    wait(timeout)


def listed(iterable: Any) -> Sequence[Any]:
    """Return the items of *iterable*, which raises what it has to raise here."""
    return iterable if isinstance(iterable, tuple | list | range) else list(iterable)
