"""Handles: the results of calls that a pool has taken."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any, Generic, TypeVar

from typing_extensions import override

from pparallel.errors import TaskTimeoutError
from pparallel.runtime.future import CANCELLED, FINISHED, PENDING, RUNNING, LeanFuture

logger = logging.getLogger(__name__)

R = TypeVar("R")
#: (is it there, wait for it, time-out): see ``Pool.attend``
Attend = Callable[[Callable[[], bool], Callable[[float | None], object], float | None], None]


class Publishing:
    """What the results of one pool share.

    Attributes:
        listeners: how many results call functions of the user's when they end. Such a function may
            want a lock that a thread holds which hands over work: no pool calls it in there.
    """

    __slots__ = ("listeners",)

    def __init__(self) -> None:
        self.listeners = 0


class PoolResult(LeanFuture[R], Generic[R]):
    """The result of one call, to come: a future, with the methods of ``AsyncResult`` besides.

    It can be awaited in a coroutine. :meth:`cancel` succeeds until the call's first task starts.
    """

    _is_listened_to = False

    def __init__(self, attend: Attend, publishing: Publishing) -> None:
        super().__init__()
        self._publishing, self._attend = publishing, attend
        self._claimed = False  # the outcome is known, though perhaps not published yet

    @override
    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        if is_cancelled:
            self._listen_no_more()
        return is_cancelled

    @override
    def add_done_callback(self, fn: Callable[[Future[R]], object]) -> None:
        self.listen()
        self.when_done(fn)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the call has ended, at most *timeout* seconds; return whether it has."""
        if timeout is None:
            while not self.done():
                self._attend(self.done, self._wait, None)
            return True
        deadline = monotonic() + timeout
        while not self.done():
            self._attend(self.done, self._wait, timeout)
            timeout = deadline - monotonic()
            if timeout <= 0:
                break
        return self.done()

    @override
    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not (self.done() or self.wait(timeout)):
            raise TaskTimeoutError("the task", timeout or 0.0)
        return super().exception()

    def listen(self) -> None:
        """Say that functions of the user's are called at the end."""
        with self._lock:
            if not (self._is_listened_to or self.settled()):
                self._is_listened_to = True
                self._publishing.listeners += 1

    def begin(self) -> bool:
        """Say that the first task starts: called by the pool, as are the three methods below.

        Returns:
            False when the call was cancelled, or has failed already.
        """
        with self._lock:
            begins = self._state == PENDING
            if begins:
                self._state = RUNNING
        return begins

    def settled(self) -> bool:
        """Return whether the outcome is known, though perhaps not published yet."""
        return self._claimed or self._state == CANCELLED

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
        with self._lock:
            if self.settled():
                return
            self._claimed, self._state = True, RUNNING  # it cannot be cancelled any more
        try:
            try:
                if callback is not None:
                    _call_back(callback, value if error is None else error)
            finally:
                self._end(FINISHED, value, error)
        finally:
            self._listen_no_more()

    def _listen_no_more(self) -> None:
        if self._is_listened_to:
            with self._lock:
                if self._is_listened_to:
                    self._is_listened_to = False
                    self._publishing.listeners -= 1


def _call_back(callback: Callable[[Any], object], outcome: object) -> None:
    """Call a user's *callback*; what it raises is logged, for nobody waits for it."""
    try:
        callback(outcome)
    except BaseException as error:
        logger.exception("The callback %r of a pool's result failed", callback)
        # Ctrl-C is raised where it belongs; a worker must survive whatever a callback raises.
        if (
            isinstance(error, KeyboardInterrupt)
            and threading.current_thread() is threading.main_thread()
        ):
            raise
