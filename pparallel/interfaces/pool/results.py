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
        self._settled = threading.Lock()  # taken, once, by whoever settles it

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

    def begin(self) -> bool:
        """Say that the first task starts: called by the pool, as are the three methods below.

        Returns:
            False when the call was cancelled, or has failed already.
        """
        self._condition.acquire()  # what fails it meanwhile waits, and finds it running
        try:
            return not self._settled.locked() and self.set_running_or_notify_cancel()
        finally:
            self._condition.release()

    def settled(self) -> bool:
        """Return whether the outcome is known, though perhaps not published yet."""
        return self._settled.locked() or self.cancelled()

    def settle(self, value: R, callback: Callable[[R], object] | None = None) -> None:
        """Publish *value*, after *callback* has had it, unless the outcome is known."""
        if self._settled.acquire(False):
            if callback is not None:
                _call_back(callback, value)
            try:
                self.set_result(value)
            except BaseException as error:  # noqa: BLE001 - of a done-callback
                _explain(error)

    def settle_with_error(
        self, error: BaseException, callback: Callable[[BaseException], object] | None = None
    ) -> None:
        """Publish *error*, after *callback* has had it, unless the outcome is known."""
        if self._settled.acquire(False):
            if callback is not None:
                _call_back(callback, error)
            try:
                self.set_exception(error)
            except BaseException as unpublished:  # noqa: BLE001 - of a done-callback
                _explain(unpublished)

    def _wait_or_raise(self, timeout: float | None) -> None:
        if not (self.done() or self.wait(timeout)):
            raise TaskTimeoutError("the task", timeout or 0.0)

    def _block(self, timeout: float | None) -> None:
        with contextlib.suppress(FutureTimeoutError, CancelledError):
            super().exception(timeout)


class CallSink(Sink, Generic[R]):
    """Settles a handle with the value of the one task of its batch."""

    __slots__ = ("_callback", "_error_callback", "_handle")

    def __init__(
        self,
        handle: PoolResult[R],
        callback: Callable[[R], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> None:
        self._handle = handle
        self._callback = callback
        self._error_callback = error_callback

    @property
    @override
    def cancelled(self) -> bool:
        return self._handle.settled()

    @override
    def begin(self) -> bool:
        return self._handle.begin()

    @override
    def done(self, first: int, values: Sequence[Any]) -> None:
        self._handle.settle(values[0], self._callback)

    @override
    def failed(self, index: int, error: BaseException) -> None:
        self._handle.settle_with_error(error, self._error_callback)

    @override
    def abort(self, error: BaseException) -> None:
        self._handle.settle_with_error(error, self._error_callback)

    def finish(self, value: R) -> None:
        """Settle the handle with *value*, unless it is settled."""
        self._handle.settle(value, self._callback)


class MapSink(CallSink[list[R]], Generic[R]):
    """Settles a handle with the list of a batch's values, or with its first failure."""

    __slots__ = ("_left", "_lock", "_size", "_values")

    def __init__(
        self,
        handle: PoolResult[list[R]],
        size: int,
        callback: Callable[[list[R]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> None:
        super().__init__(handle, callback, error_callback)
        self._lock = threading.Lock()
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


def _call_back(callback: Callable[[Any], object], outcome: object) -> None:
    """Call a user's *callback*; what it raises is logged, for nobody waits for it."""
    try:
        callback(outcome)
    except BaseException as error:
        logger.exception("The callback %r of a pool's result failed", callback)
        _pass_on_interrupt(error)


def _explain(error: BaseException) -> None:
    # A call that was cancelled before it began refuses its outcome, as it should. Of a user's
    # done-callbacks Future itself logs any Exception.
    if not isinstance(error, InvalidStateError):
        logger.error("A done-callback of a pool's result failed", exc_info=error)
        _pass_on_interrupt(error)


def _pass_on_interrupt(error: BaseException) -> None:
    """Raise Ctrl-C again where it belongs; a worker must survive whatever a callback raises."""
    if (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
    ):
        raise error
