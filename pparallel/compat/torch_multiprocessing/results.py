"""What the calls of a pool return before they have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from typing_extensions import override

from pparallel.compat.torch_multiprocessing.encoding import translated
from pparallel.interfaces.pool import PoolResult, ResultStream


class AsyncResult:
    """The result of a call, to come.

    It keeps its pool until it is dropped itself.
    """

    def __init__(
        self, pool: object, handle: PoolResult[Any], finish: Callable[[Any], Any] | None = None
    ) -> None:
        self._pool, self._handle, self._finish = pool, handle, finish

    def get(self, timeout: float | None = None) -> Any:
        """Return the result, or raise what the call raised.

        Raises:
            multiprocessing.TimeoutError: it was not there within *timeout* seconds.
            MaybeEncodingError: something of the call cannot be sent.
            WorkerLostError: the worker that ran it died.
        """
        try:
            value = self._handle.get(timeout)
        except Exception as error:
            own = translated(error)
            if own is error:
                raise
            raise own from error
        return value if self._finish is None else self._finish(value)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the call has ended, at most *timeout* seconds."""
        self._handle.wait(timeout)

    def ready(self) -> bool:
        """Return whether the call has ended."""
        return self._handle.ready()

    def successful(self) -> bool:
        """Return whether the call ended without an exception.

        Raises:
            ValueError: it has not ended.
        """
        return self._handle.successful()


class IMapIterator(Iterator[Any]):
    """The results of ``imap``, one after the other.

    A task's exception is raised at its place, and the iteration goes on after it.
    """

    def __init__(self, pool: object, stream: ResultStream[Any], *, chunked: bool = False) -> None:
        self._pool, self._stream, self._chunked = pool, stream, chunked
        self._chunk: Iterator[Any] = iter(())

    @override
    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout: float | None = None) -> Any:
        """Return the next result, or raise what its task raised.

        Raises:
            multiprocessing.TimeoutError: it was not there within *timeout* seconds.
            MaybeEncodingError: something of the task cannot be sent.
            StopIteration: there are no more.
        """
        for each in self._chunk:
            return each
        try:
            value = self._stream.next(timeout)
        except Exception as error:
            own = translated(error)
            if own is error:
                raise
            raise own from error
        if not self._chunked:
            return value
        self._chunk = iter(value)
        return self.next(timeout)
