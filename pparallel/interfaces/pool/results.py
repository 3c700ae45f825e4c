"""Handles: the results of calls that a pool has taken."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from time import monotonic
from typing import Any, Generic, TypeVar, cast

from typing_extensions import override

from pparallel.errors import TaskTimeoutError

logger = logging.getLogger(__name__)

R = TypeVar("R")
#: (is it there, wait for it, time-out): see ``Pool.attend``
Attend = Callable[[Callable[[], bool], Callable[[float | None], object], float | None], None]

# The states of a future, as :mod:`concurrent.futures` writes them. One that was cancelled is at
# once in the state of which those who wait have been told.
_PENDING, _RUNNING, _FINISHED = "PENDING", "RUNNING", "FINISHED"
_CANCELLED = "CANCELLED_AND_NOTIFIED"


class Publishing:
    """What the results of one pool share: the lock under which their states change.

    Attributes:
        listeners: how many results call functions of the user's when they end. Such a function may
            want a lock that a thread holds which hands over work: no pool calls it in there.
    """

    __slots__ = ("listeners", "mutex")

    def __init__(self) -> None:
        # "with" on a lock itself is safe from Ctrl-C; the methods of a condition are not
        self.mutex = threading.RLock()
        self.listeners = 0


class _OwnCondition(threading.Condition):
    """The condition of one result, at which no thread waits: its lock is what others take.

    :func:`concurrent.futures.wait` and ``as_completed`` take the locks of all their futures in the
    order of ``id()``: a lock that several futures share would be taken out of order.
    """

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        super().__init__(self.mutex)


class _Condition:
    """Makes the condition of a result when it is first asked for, which only waiting does."""

    def __get__(self, result: PoolResult[Any], owner: type) -> threading.Condition:
        return result._make_own()


class PoolResult(Future[R], Generic[R]):
    """The result of one call, to come: a future, with the methods of ``AsyncResult`` besides.

    It can be awaited in a coroutine. :meth:`cancel` succeeds until the call's first task starts.
    """

    # Instead of what Future sets in each, with a condition: half of what a call would cost. A test
    # compares the attributes.
    _condition = _Condition()
    _own: _OwnCondition | None = None  # taken before the mutex
    _state = _PENDING
    _result: R | None = None
    _exception: BaseException | None = None
    _waiters = cast("list[Any]", ())  # a list once there are any
    _done_callbacks = cast("list[Callable[[Future[R]], object]]", ())  # a list once there are any
    _is_listened_to = False
    _claimed = False  # the outcome is known, though perhaps not published yet

    def __init__(self, attend: Attend, publishing: Publishing) -> None:
        self._publishing, self._mutex = publishing, publishing.mutex
        self._attend = attend

    @override
    def cancel(self) -> bool:
        before = self._changed(self._cancel)
        if before == _PENDING:
            self._tell_done()
            self._listen_no_more()
        return before in (_PENDING, _CANCELLED)

    @override
    def add_done_callback(self, fn: Callable[[Future[R]], object]) -> None:
        self.listen()
        self.when_done(fn)

    def when_done(self, fn: Callable[[Future[R]], object]) -> None:
        """Have *fn* called at the end, which is no function of the user's: it waits for no lock."""
        with self._mutex:
            if not self.done():
                if self._done_callbacks:
                    self._done_callbacks.append(fn)
                else:
                    self._done_callbacks = [fn]
                return
        self._call_done(fn)

    @override
    def cancelled(self) -> bool:
        return self._state == _CANCELLED

    @override
    def running(self) -> bool:
        return self._state == _RUNNING

    @override
    def done(self) -> bool:
        return self._state in (_FINISHED, _CANCELLED)

    def get(self, timeout: float | None = None) -> R:
        """Return the result, or raise what the call raised; the same as :meth:`result`.

        Raises:
            TaskTimeoutError: it was not there within *timeout* seconds.
            CancelledError: the call was cancelled.
        """
        return self.result(timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the call has ended, at most *timeout* seconds; return whether it has."""
        if timeout is None:
            while not self.done():
                self._attend(self.done, self._block, None)
            return True
        deadline = monotonic() + timeout
        while not self.done():
            self._attend(self.done, self._block, timeout)
            timeout = deadline - monotonic()
            if timeout <= 0:
                break
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
        return self._state == _FINISHED and self._exception is None

    @override
    def result(self, timeout: float | None = None) -> R:
        try:
            error = self.exception(timeout)
            if error is not None:
                raise error
            return self._result  # type: ignore[return-value] # None is an R if it is the result
        finally:
            error = None
            del self  # the raised exception's traceback would keep this frame, and so the result

    @override
    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not (self.done() or self.wait(timeout)):
            raise TaskTimeoutError("the task", timeout or 0.0)
        if self._state == _CANCELLED:
            raise CancelledError
        return self._exception

    def __await__(self) -> Generator[Any, None, R]:
        return asyncio.wrap_future(self).__await__()

    def listen(self) -> None:
        """Say that functions of the user's are called at the end."""
        with self._mutex:
            if not (self._is_listened_to or self._claimed or self._state == _CANCELLED):
                self._is_listened_to = True
                self._publishing.listeners += 1

    def begin(self) -> bool:
        """Say that the first task starts: called by the pool, as are the three methods below.

        Returns:
            False when the call was cancelled, or has failed already.
        """
        with self._mutex:
            begins = self._state == _PENDING and not self._claimed
            if begins:
                self._state = _RUNNING
        return begins

    def settled(self) -> bool:
        """Return whether the outcome is known, though perhaps not published yet."""
        return self._claimed or self._state == _CANCELLED

    def settle(self, value: R, callback: Callable[[R], object] | None = None) -> None:
        """Publish *value*, after *callback* has had it, unless the outcome is known."""
        self._settle(value, None, callback)

    def settle_with_error(
        self, error: BaseException, callback: Callable[[BaseException], object] | None = None
    ) -> None:
        """Publish *error*, after *callback* has had it, unless the outcome is known."""
        self._settle(None, error, callback)

    def _settle(
        self,
        value: R | None,
        error: BaseException | None,
        callback: Callable[[Any], object] | None,
    ) -> None:
        with self._mutex:
            if self._claimed or self._state == _CANCELLED:
                return
            self._claimed = True
            self._result, self._exception = value, error
            is_published = callback is None and self._own is None
            if is_published:
                self._state = _FINISHED
                if self._waiters:
                    self._wake()
        try:
            if not is_published:
                try:
                    if callback is not None:
                        _call_back(callback, value if error is None else error)
                finally:
                    self._changed(self._finish)
            if self._done_callbacks:
                self._tell_done()
        finally:
            if self._is_listened_to:
                self._listen_no_more()

    def _make_own(self) -> _OwnCondition:
        if self._own is None:
            made = _OwnCondition()
            with self._mutex:
                if self._own is None:
                    self._waiters, self._own = [*self._waiters], made
        return self._own

    def _changed(self, change: Callable[[], str]) -> str:
        """Return what *change* returns, called under the locks under which the state changes."""
        with self._mutex:
            own = self._own
            if own is None:
                return change()
        with own.mutex, self._mutex:
            return change()

    def _finish(self) -> str:
        self._state = _FINISHED
        self._wake()
        return self._state

    def _cancel(self) -> str:
        """Return the state before: not that of a pending call once the outcome is known."""
        before = self._state
        if before == _PENDING and self._claimed:
            return _RUNNING
        if before == _PENDING:
            self._state = _CANCELLED
            for waiter in self._waiters:
                waiter.add_cancelled(self)
        return before

    def _listen_no_more(self) -> None:
        with self._mutex:
            if self._is_listened_to:
                self._is_listened_to = False
                self._publishing.listeners -= 1

    def _wake(self) -> None:
        failed = self._exception is not None
        for waiter in self._waiters:
            (waiter.add_exception if failed else waiter.add_result)(self)

    def _tell_done(self) -> None:
        for callback in self._done_callbacks:
            self._call_done(callback)

    def _call_done(self, callback: Callable[[Future[R]], object]) -> None:
        try:
            callback(self)
        except BaseException as error:
            logger.exception("A done-callback of a pool's result failed")
            _pass_on_interrupt(error)

    def _block(self, timeout: float | None) -> None:
        alarm = _Alarm()
        with self._mutex:
            if self.done():
                return
            if self._own is None and not self._waiters:
                self._waiters = [alarm]
            else:
                self._waiters.append(alarm)
        try:
            alarm.wait(timeout)
        finally:
            with self._mutex:
                self._waiters.remove(alarm)


class _Alarm:
    """Wakes one thread; has the methods that a future calls of whoever waits for it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, timeout: float | None) -> None:
        """Block until the future has ended, at most *timeout* seconds."""
        limit = -1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)
        self._lock.acquire(timeout=limit)

    def add_result(self, future: Future[Any]) -> None:
        """Wake the thread."""
        self._lock.release()

    add_exception = add_cancelled = add_result


def _call_back(callback: Callable[[Any], object], outcome: object) -> None:
    """Call a user's *callback*; what it raises is logged, for nobody waits for it."""
    try:
        callback(outcome)
    except BaseException as error:
        logger.exception("The callback %r of a pool's result failed", callback)
        _pass_on_interrupt(error)


def _pass_on_interrupt(error: BaseException) -> None:
    """Raise Ctrl-C again where it belongs; a worker must survive whatever a callback raises."""
    if (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
    ):
        raise error
