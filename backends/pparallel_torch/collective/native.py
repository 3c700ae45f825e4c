"""The process group of torch's that belongs to one group of members: its operations, its end."""

from __future__ import annotations

import copy
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

from pparallel.errors import CallTimeoutError, ResourceExhaustedError
from pparallel.runtime.resources import start_thread
from pparallel_torch.collective.ends import Ends

if TYPE_CHECKING:
    from pparallel_torch.collective.works import NativeWork

#: Seconds that a thread sleeps in torch at most: meanwhile it hears of no signal, and of no end
#: that ends no connection.
SLICE = 0.25
#: Seconds that operations have to end once they were told to.
GRACE = 1.0
_LOOK = 0.002  #: seconds between two looks whether they have

Started = Any  #: torch's handle of an operation
GaveUp = Callable[[str, float], None]


class NativeGroup(ABC):
    """A process group of torch's, with what ends its operations.

    Args:
        made: torch's process group.
        store: which must live as long.
        ends: why operations fail.
        others: the names of those with whom this member is connected.
        timeout: seconds that an operation takes at most.
        gave_up: tells the others what this member has given up.

    Attributes:
        made: torch's process group.
        ends: why operations fail.
    """

    def __init__(
        self,
        made: Any,
        store: Any,
        ends: Ends,
        others: Sequence[str],
        timeout: float,
        gave_up: GaveUp,
    ) -> None:
        self.made, self.ends = made, ends
        self.works: WeakSet[NativeWork] = WeakSet()
        self._store, self._others = store, others
        self._timeout, self._gave_up = timeout, gave_up
        self._slice = timedelta(seconds=min(SLICE, timeout))
        self._current: Started | None = None  # what a thread waits for that began it itself

    @abstractmethod
    def abort(self) -> None:
        """End all operations that run, in this member at once, and in the others by that."""

    def wake(self) -> None:
        """Have those who wait look at why the group has ended; never blocks."""
        self.abort()

    @abstractmethod
    def release(self) -> None:
        """Give torch's process group back."""

    @abstractmethod
    def passes(self, started: Started, span: timedelta) -> bool:
        """Return whether an operation is done, after *span* at the latest.

        Raises:
            Exception: it has failed.
        """

    @abstractmethod
    def is_broken(self, error: Exception) -> bool:
        """Return whether an operation has failed because of another member."""

    def do(self, what: str, begin: Callable[[Any], Started]) -> None:
        """Begin an operation and wait until it is done."""
        if self.ends.over is not None:
            self.ends.check()
        try:
            started = self._current = begin(self.made)
            if not self.passes(started, self._slice):
                self._wait(started, what, self._timeout, gives_up=True)
        except Exception as error:  # noqa: BLE001 - it is raised again
            self._fail(what, error)
        self._current = None

    def begin(self, what: str, begin: Callable[[Any], Started]) -> Started:
        """Begin an operation."""
        self.ends.check()
        try:
            return begin(self.made)
        except Exception as error:  # noqa: BLE001 - it is raised again
            self._fail(what, error)

    def wait(self, started: Started, what: str, began: float, timeout: float | None) -> None:
        """Wait until an operation is done; after the time-out of all operations it has failed.

        Args:
            started: torch's handle.
            what: the operation's name.
            began: when it began.
            timeout: seconds that the caller waits at most.
        """
        left = max(0.0, began + self._timeout - time.monotonic())
        own = timeout is None or timeout >= left
        try:
            self._wait(started, what, left if own or timeout is None else timeout, gives_up=own)
        except Exception as error:  # noqa: BLE001 - it is raised again
            self._fail(what, error)

    def settle(self) -> None:  # noqa: B027 - here do() has waited
        """Wait for what :meth:`do` has begun, and raise what went wrong."""

    @property
    def is_waited_for(self) -> bool:
        """Whether a thread waits for what :meth:`settle` waits for."""
        return False

    def in_background(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return *run* for another thread, where the operations in it are done when it returns.

        The inputs are as this thread has left them.
        """
        return run

    def member_left(self) -> None:  # noqa: B027 - here whoever waits sees it
        """Have what waits for a member that has left end; never blocks."""

    def look(self) -> None:
        """End what cannot be done any more."""
        if self.ends.overdue:
            self.abort()

    def close(self) -> None:
        """Give everything back; the group has ended."""
        ended = self._have_ended() or self._end_all()
        for work in list(self.works):
            work.drop()
        self._current = None
        self.release()
        made, self.made = [self.made], None
        if not ended:  # torch waits for it as the group goes: until the operation's own time-out
            drop = threading.Thread(target=made.clear, name="pparallel-torch-drop", daemon=True)
            with suppress(ResourceExhaustedError):  # then this thread waits for it
                start_thread(drop)

    # -- inside -------------------------------------------------------------------------------

    def _have_ended(self) -> bool:
        return all(each.is_completed() for each in self._running())

    def _end_all(self) -> bool:
        """End what runs; return whether it has ended a moment later."""
        self.abort()
        deadline = time.monotonic() + GRACE
        while not (ended := self._have_ended()) and time.monotonic() < deadline:
            time.sleep(_LOOK)
        return ended

    def _running(self) -> list[Started]:
        current = [] if self._current is None else [self._current]
        return [*current, *(each for work in list(self.works) for each in work.started)]

    def _wait(self, started: Started, what: str, limit: float, *, gives_up: bool) -> None:
        deadline = time.monotonic() + limit
        while True:
            left = deadline - time.monotonic()
            if self.passes(started, timedelta(seconds=max(0.001, min(SLICE, left)))):
                return
            self.ends.check()
            self.look()
            if time.monotonic() >= deadline:
                if gives_up:
                    self._give_up(what)
                raise CallTimeoutError(what, self._timeout if gives_up else limit)

    def _give_up(self, what: str) -> None:
        if self.ends.end(CallTimeoutError(what, self._timeout)):
            self._gave_up(what, self._timeout)
        self.abort()

    def _fail(self, what: str, error: Exception) -> NoReturn:
        found = self._explained(what, error)
        if found is error:
            raise error
        raise found from error

    def _explained(self, what: str, error: Exception) -> BaseException:
        """Return what to raise for an operation's failure."""
        if isinstance(error, CallTimeoutError):
            return error
        if self.ends.over is not None:
            return copy.copy(self.ends.over)
        if not self.is_broken(error):
            return error
        if "Timed out" in str(error):
            self._give_up(what)
            return copy.copy(self.ends.over or error)
        self.abort()  # who waits for this member waits in vain
        return self.ends.why(self._others)
