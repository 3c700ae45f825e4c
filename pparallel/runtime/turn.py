"""Something that one thread at a time does, whatever interrupts it."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

from pparallel.runtime import dedicated

PATIENCE = 1.0  #: seconds that is waited for who has the turn
AGAIN = 0.001  #: seconds after which it is asked for again


class Turn:
    """Lets one thread at a time do something, and its signals' handlers; others need not wait.

    It is free afterwards wherever a handler raises: none runs between the deletion of an item and
    the assignment after it, as one may after a call of ``acquire``.

    Attributes:
        owner: the thread that has it; 0: none.
    """

    def __init__(self) -> None:
        # The last of eight is taken out and put back: a list that shrinks to less than half would
        # give memory back, and might find none when it grows again.
        self._is_free = [True] * 8
        self.owner = 0

    @dedicated.exclusive
    def take(self, act: Callable[..., object], *args: Any) -> bool:
        """Call *act* and return True; or return False, for another thread has the turn."""
        me = get_ident()
        if self.owner == me:
            act(*args)
            return True
        try:
            del self._is_free[7]
            self.owner = me
        except IndexError:
            return False
        try:
            act(*args)
        finally:
            self.owner = 0
            self._is_free.append(True)
        return True

    def take_soon(self, act: Callable[..., object], *args: Any) -> None:
        """As :meth:`take`, but wait for the turn; after :data:`PATIENCE` seconds do without it."""
        until = time.monotonic() + PATIENCE
        while not self.take(act, *args):
            if time.monotonic() >= until:
                act(*args)
                return
            time.sleep(AGAIN)
