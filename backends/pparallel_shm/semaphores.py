"""Semaphores in shared memory: how a member that waits there is woken."""

from __future__ import annotations

import ctypes
import time
from typing import Any

NBYTES = 64  #: more than a sem_t has on any platform

_SHARED = 1

# Does not let other threads run, which would cost more than the call.
_quick = ctypes.PyDLL(None)
_slow = ctypes.CDLL(None)


class _Until(ctypes.Structure):
    """struct timespec."""


_Until._fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]

_post: Any = _quick.sem_post


class Semaphore:
    """A semaphore at an address in shared memory, which whoever uses this keeps mapped."""

    def __init__(self, address: int) -> None:
        self._at = ctypes.c_void_p(address)

    def make(self) -> None:
        """Set it up, before anyone uses it."""
        if _quick.sem_init(self._at, _SHARED, 0):
            raise OSError("a semaphore in shared memory cannot be made")

    def post(self) -> None:
        """Wake who waits, or who waits next; never blocks."""
        _post(self._at)

    def wait(self, seconds: float) -> None:
        """Wait until it is posted, for so long at most; a signal ends it too."""
        clock, wait = _CLOCK
        end = time.clock_gettime(clock) + max(seconds, 0.0)
        wait(self._at, ctypes.byref(_Until(int(end), int(end % 1 * 1e9))))


def _clock() -> tuple[int, Any]:
    """Return the clock to wait by, and the function; one that nobody sets, where there is one."""
    timed: Any = getattr(_slow, "sem_clockwait", None)
    if timed is None:
        return time.CLOCK_REALTIME, _slow.sem_timedwait
    return time.CLOCK_MONOTONIC, lambda at, until: timed(at, time.CLOCK_MONOTONIC, until)


_CLOCK = _clock()
