"""Handles: the results of calls that a pool has taken."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Generic, TypeVar, cast

from typing_extensions import override

from pparallel.errors import TaskTimeoutError
from pparallel.interfaces.pool.batch import Sink

logger = logging.getLogger(__name__)

R = TypeVar("R")
#: (is it there, wait for it, time-out): see ``Pool.attend``
Attend = Callable[[Callable[[], bool], Callable[[float | None], object], float | None], None]


class PoolResult(Future[R], Generic[R]):
    """The result of one call, to come: a future, with the methods of ``AsyncResult`` besides.

    It can be awaited in a coroutine. :meth:`cancel` succeeds until the call's first task starts.
    """

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self._attend = attend

    def get(self, timeout: float | None = None) -> R:
        """Return the result, or raise what the call raised; the same as :meth:`result`.

        Raises:
            TaskTimeoutError: it was not there within *timeout* seconds.
            CancelledError: the call was cancelled.
        """
        return self.result(timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the call has ended, at most *timeout* seconds; return whether it has."""
        if not self.done():
            self._attend(self.done, self._block, timeout)
        return self.done()

    def ready(self) -> bool:
        """Return whether the call has ended, in whatever way."""
        return self.done()

    def successful(self) -> bool:
        """Return whether the call ended without an exception.

        Raises:
            ValueError: it has not ended.
        """
        if not self.done():
            message = f"{self!r} is not ready"
            raise ValueError(message)
        return not self.cancelled() and super().exception() is None

    @override
    def result(self, timeout: float | None = None) -> R:
        try:
            self._wait_or_raise(timeout)
            return super().result()
        finally:
            del self  # the raised exception's traceback would keep this frame, and so the result

    @override
    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait_or_raise(timeout)
        return super().exception()

    def __await__(self) -> Generator[Any, None, R]:
        return asyncio.wrap_future(self).__await__()

    def _wait_or_raise(self, timeout: float | None) -> None:
        if not self.wait(timeout):
            raise TaskTimeoutError("the task", timeout or 0.0)

    def _block(self, timeout: float | None) -> None:
        with contextlib.suppress(FutureTimeoutError, CancelledError):
            super().exception(timeout)


class CallSink(Sink, Generic[R]):
    """Settles a handle with the value of the one task of its batch."""

    __slots__ = ("_callback", "_error_callback", "_handle", "_lock", "_over")

    def __init__(
        self,
        handle: PoolResult[R],
        callback: Callable[[R], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> None:
        self._handle = handle
        self._callback = callback
        self._error_callback = error_callback
        self._lock = threading.Lock()
        self._over = False

    @property
    @override
    def cancelled(self) -> bool:
        return self._over or self._handle.cancelled()

    @override
    def begin(self) -> bool:
        with self._lock:
            if not self._over:
                self._over = not self._handle.set_running_or_notify_cancel()
            return not self._over

    @override
    def done(self, first: int, values: Sequence[Any]) -> None:
        self.finish(values[0])

    @override
    def failed(self, index: int, error: BaseException) -> None:
        self.abort(error)

    @override
    def abort(self, error: BaseException) -> None:
        if self._end():
            call_back(self._error_callback, error)
            _settle(self._handle.set_exception, error)

    def finish(self, value: R) -> None:
        """Settle the handle with *value*, unless it is settled."""
        if self._end():
            call_back(self._callback, value)
            _settle(self._handle.set_result, value)

    def _end(self) -> bool:
        with self._lock:
            ended, self._over = self._over, True
        return not ended


class MapSink(CallSink[list[R]], Generic[R]):
    """Settles a handle with the list of a batch's values, or with its first failure."""

    __slots__ = ("_left", "_size", "_values")

    def __init__(
        self,
        handle: PoolResult[list[R]],
        size: int,
        callback: Callable[[list[R]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> None:
        super().__init__(handle, callback, error_callback)
        self._size = self._left = size
        self._values: list[R | None] = []

    @override
    def done(self, first: int, values: Sequence[Any]) -> None:
        if len(values) == self._size:
            self.finish(list(values))
            return
        with self._lock:
            if not self._values:
                self._values = [None] * self._size
            self._values[first : first + len(values)] = values
            self._left -= len(values)
            complete = self._left == 0
        if complete:
            self.finish(cast("list[R]", self._values))


def call_back(callback: Callable[[Any], object] | None, outcome: object) -> None:
    """Call a user's *callback*; what it raises is logged, for nobody waits for it."""
    if callback is None:
        return
    try:
        callback(outcome)
    except (Exception, SystemExit):
        logger.exception("The callback %r of a pool's result failed", callback)


def _settle(settle: Callable[[Any], None], outcome: object) -> None:
    try:
        settle(outcome)
    except InvalidStateError:
        pass  # cancelled a moment before
    except SystemExit:  # Future itself logs any Exception of a done-callback
        logger.exception("A callback of a pool's result failed")
