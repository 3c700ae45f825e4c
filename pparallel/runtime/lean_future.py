"""Futures that cost little as long as nobody waits for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Any, Generic, NoReturn, TypeVar, cast

from typing_extensions import override

from pparallel.runtime import dedicated
from pparallel.runtime.dedicated import RECEIVING
from pparallel.runtime.interrupts import is_interrupt, raise_interrupt

logger = logging.getLogger(__name__)

FAILED = "What was to be called when %r is done has failed"

T = TypeVar("T")

PENDING, FINISHED = "PENDING", "FINISHED"  #: as :mod:`concurrent.futures` writes its states

_FIRST = (0,)

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
            is_bare, is_first = self._is_bare, self._state == PENDING
            if is_bare and is_first:
                self._result, self._state = result, FINISHED
        if not is_bare:
            super().set_result(result)
            return
        if self._done_callbacks:  # also those of whoever was interrupted before it called them
            self._invoke_callbacks()
        if not is_first:
            self._refuse()

    @override
    def set_exception(self, exception: BaseException | None) -> None:
        with bare:
            is_bare, is_first = self._is_bare, self._state == PENDING
            if is_bare and is_first:
                self._exception, self._state = exception, FINISHED
        if not is_bare:
            super().set_exception(exception)
            return
        if self._done_callbacks:  # also those of whoever was interrupted before it called them
            self._invoke_callbacks()
        if not is_first:
            self._refuse()

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
            if dedicated.here.role.kind == RECEIVING:
                dedicated.refuse_to_wait()
            latch = threading.Lock()
            latch.acquire()

            def done(_: object) -> None:
                with suppress(RuntimeError):  # an interrupted callback is called again
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
        """Call what is to be called, each once, whichever threads come here.

        One in which a signal's handler raises is called again: it may not have begun.
        """
        taken: list[Callable[[Future[T]], object]] = []
        try:
            while self._done_callbacks:
                taken.extend(map(self._done_callbacks.pop, _FIRST))  # in one go
                self._call(taken[0])
                del taken[:]
        except BaseException as error:
            is_own = is_interrupt(error)
            if isinstance(error, IndexError) and not is_own:  # another thread has taken the last
                return
            is_exit = isinstance(error, SystemExit) and not is_own
            if taken and not is_exit:
                with suppress(BaseException):  # it may have ended, and find nothing more to do
                    taken[0](self)
            self._invoke_callbacks()
            if not is_exit:  # which is not for the thread that receives
                raise
            logger.exception("What was to be called when %r is done has exited", self)

    def _call(self, callback: Callable[[Future[T]], object]) -> None:
        try:
            callback(self)
        except Exception as error:
            raise_interrupt(error)
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
