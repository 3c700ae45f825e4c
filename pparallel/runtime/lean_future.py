"""Futures that cost little as long as nobody waits for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Generic, NoReturn, TypeVar, cast

from typing_extensions import override

logger = logging.getLogger(__name__)

FAILED = "What was to be called when %r is done has failed"

T = TypeVar("T")

PENDING, FINISHED = "PENDING", "FINISHED"  #: as :mod:`concurrent.futures` writes its states

#: Held for as long as it takes to look whether a future has a condition. One that has none has
#: nobody who waits for it, and this lock is the one under which its state changes. A signal's
#: handler may wait for another future meanwhile, in the same thread.
bare = threading.RLock()


class _Condition:
    """Makes the condition of a future when somebody first asks for it."""

    def __get__(self, future: LeanFuture[Any], owner: type) -> threading.Condition:
        with bare:
            there = vars(future)
            there.setdefault("_waiters", future._new_waiters())
            there.setdefault("_done_callbacks", [])
            made: threading.Condition = there.setdefault("_condition", threading.Condition())
            future._is_bare = False
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
        if self._state == FINISHED and self._exception is None:
            return self._result  # type: ignore[return-value] # None is a T if it is the result
        return super().result(timeout)

    @override
    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._exception if self._state == FINISHED else super().exception(timeout)

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
        else:
            for callback in self._done_callbacks:
                try:
                    callback(self)
                except (Exception, SystemExit):
                    logger.exception(FAILED, self)

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

    def _invoke_callbacks(self) -> None:
        """As the base class does, but end no thread that receives for others."""
        for callback in self._done_callbacks:
            try:
                callback(self)
            except (Exception, SystemExit):
                logger.exception(FAILED, self)

    @override
    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        with bare:
            is_early = self._is_bare and self._state == PENDING
            if is_early:
                vars(self).setdefault("_done_callbacks", []).append(fn)
        if not is_early:
            super().add_done_callback(fn)

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
