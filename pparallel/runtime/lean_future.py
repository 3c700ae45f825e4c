"""Futures that cost little as long as nobody waits for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Any, Generic, NoReturn, TypeVar, cast

from typing_extensions import override

logger = logging.getLogger(__name__)

FAILED = "What was to be called when %r is done has failed"

T = TypeVar("T")

PENDING, FINISHED = "PENDING", "FINISHED"  #: as :mod:`concurrent.futures` writes its states

#: Held for as long as it takes to look whether a future has a condition. One that has none has
#: nobody who waits for it, and this lock is the one under which its state changes. Nothing is made
#: or called while it is held, so that no finalizer runs then, which may wait for other threads.
bare = threading.RLock()


class _Condition:
    """Makes the condition of a future when somebody first asks for it."""

    def __get__(self, future: LeanFuture[Any], owner: type) -> threading.Condition:
        there, waiters, condition = vars(future), future._new_waiters(), threading.Condition()
        with bare:
            if future._is_bare:
                there["_waiters"], there["_condition"] = waiters, condition
                future._is_bare = False
        made: threading.Condition = there["_condition"]
        return made


class LeanFuture(Future[T], Generic[T]):
    """A future without a condition until somebody waits: making one is half of what a future costs.

    It completes once; whatever comes later is an ``InvalidStateError``, as for any future.
    """

    # Instead of what Future sets in each; a test compares the attributes.
    _condition = _Condition()
    _is_bare = True  # whether it has none
    _state = PENDING
    _result: T | None = None
    _exception: BaseException | None = None
    _waiters = cast("list[Any]", ())  # a list from when it has a condition
    _done_callbacks = cast("list[Callable[[Future[T]], object]]", ())  # one when there are any

    def __init__(self) -> None:
        """Have nothing of its own yet."""

    @override
    def done(self) -> bool:
        return self._state != PENDING and self._state != "RUNNING"

    @override
    def result(self, timeout: float | None = None) -> T:
        if self._state != FINISHED:
            self._wait(timeout)
        if self._exception is None:
            return self._result  # type: ignore[return-value] # None is a T if it is the result
        return super().result()  # it raises

    @override
    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._state != FINISHED:
            self._wait(timeout)
        return self._exception

    @override
    def set_result(self, result: T) -> None:
        with bare:
            is_bare = self._is_bare
            if is_bare:
                if self._state != PENDING:
                    self._refuse()
                self._result, self._state = result, FINISHED
        if not is_bare:
            super().set_result(result)
        elif self._done_callbacks:
            self._invoke_callbacks()

    @override
    def set_exception(self, exception: BaseException | None) -> None:
        with bare:
            is_bare = self._is_bare
            if is_bare:
                if self._state != PENDING:
                    self._refuse()
                self._exception, self._state = exception, FINISHED
        if not is_bare:
            super().set_exception(exception)
        elif self._done_callbacks:
            self._invoke_callbacks()

    @override
    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        if self.done():
            self._call(fn)
            return
        # First it is added, then looked at whether somebody would have called it: no lock is taken,
        # and a signal's handler may complete the future in between.
        vars(self).setdefault("_done_callbacks", []).append(fn)
        if self.done():
            self._invoke_callbacks()

    def _wait(self, timeout: float | None) -> None:
        """Wait until it is done: a condition would miss what completes it in a signal's handler."""
        if not self.done():
            latch = threading.Lock()
            latch.acquire()

            def done(_: object) -> None:
                latch.release()

            LeanFuture.add_done_callback(self, done)
            try:
                # Not less than 0, which NaN becomes too, and not more than a lock takes.
                latch.acquire(
                    timeout=-1 if timeout is None else max(0, min(timeout, threading.TIMEOUT_MAX))
                )
            finally:
                if not self.done():
                    with suppress(ValueError):
                        self._done_callbacks.remove(done)
        if not self.done():
            raise TimeoutError
        if self._state != FINISHED:
            raise CancelledError

    def _invoke_callbacks(self) -> None:
        """Call what is to be called, each once, whichever threads come here."""
        callbacks = self._done_callbacks
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:  # another thread has taken the last
                return
            try:
                self._call(callback)
            except SystemExit:  # it is not for the thread that happens to receive
                logger.exception("What was to be called when %r is done has exited", self)
            except BaseException:  # an interrupt of this thread: the others are called all the same
                self._invoke_callbacks()
                raise

    def _call(self, callback: Callable[[Future[T]], object]) -> None:
        try:
            callback(self)
        except Exception:
            logger.exception("What was to be called when %r is done has failed", self)

    def _new_waiters(self) -> list[Any]:
        return []

    def _refuse(self) -> NoReturn:
        raise InvalidStateError(f"{self._state}: {object.__repr__(self)}")


def when_done(future: Future[T], fn: Callable[[Future[T]], object]) -> None:
    """Have the system's own *fn* called where *future* completes, also if it is one of a user."""
    if isinstance(future, LeanFuture):
        LeanFuture.add_done_callback(future, fn)
    else:
        future.add_done_callback(fn)
