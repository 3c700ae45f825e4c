"""Why the operations of a group fail: who has left, who gave up, and this member's own end."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Sequence

from pparallel.errors import PeerLostError, is_consequence

#: Seconds that an operation whose connection broke waits to be told why.
PATIENCE = 5.0
#: Seconds that operations may go on after a member was lost of whose end no connection tells.
GRACE = 1.0


class Ends:
    """What one member knows of the end of a group; any thread may tell it.

    A member that leaves ends nothing at once: it may have done its part of what others are still
    at. Whoever needs it sees its connections end.

    Attributes:
        over: what every use of the group is told from now on, once it has ended for good.
    """

    def __init__(self) -> None:
        self.over: BaseException | None = None
        self._changed = threading.Condition()
        self._left: dict[int, BaseException] = {}
        self._since = math.inf

    @property
    def overdue(self) -> bool:
        """Whether an operation that still waits must be ended, for nothing else would end it."""
        return time.monotonic() > self._since + GRACE

    @property
    def has_left(self) -> bool:
        """Whether any other member has left."""
        return bool(self._left)

    def lose(self, rank: int, error: BaseException, *, seen: bool) -> None:
        """Note that *rank* has left; the first error counts.

        Args:
            rank: who has left.
            error: what whoever waits for it is told.
            seen: whether whoever waits for it sees that its connections end.
        """
        with self._changed:
            self._left.setdefault(rank, error)
            if not seen:
                self._since = min(self._since, time.monotonic())
            self._changed.notify_all()

    def end(self, error: BaseException) -> bool:
        """End the group for good; the first error counts. Return whether this is the first."""
        with self._changed:
            if self.over is not None:
                return False
            self.over = error
            self._changed.notify_all()
            return True

    def close(self, error: BaseException) -> None:
        """End the group because this member does; from now on this is what its uses are told."""
        with self._changed:
            self.over = error
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what a use of the group is told, if it has ended."""
        if self.over is not None:
            raise copy.copy(self.over)

    def check_all_here(self) -> None:
        """Raise what somebody is told who waits for all, if one has left or the group has ended."""
        self.check()
        if self._left:
            raise copy.copy(self._loss())

    def why(self, others: Sequence[str]) -> BaseException:
        """Return why a connection broke, waiting a moment to be told; the group ends by it.

        Args:
            others: the names of those with whom this member is connected.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.over is not None or self._left, PATIENCE)
            if self.over is None:
                self.over = self._loss() if self._left else _broken(others)
            return copy.copy(self.over)

    def _loss(self) -> BaseException:
        errors = list(self._left.values())
        return next((each for each in errors if not is_consequence(each)), errors[0])


def _broken(others: Sequence[str]) -> PeerLostError:
    return PeerLostError(" or ".join(others), "closed its connection, although it lives")
