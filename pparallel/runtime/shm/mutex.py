"""A lock between processes that the death of its holder opens."""

from __future__ import annotations

import ctypes
import errno
import functools
import time
from collections.abc import Callable
from typing import Any

NBYTES = 64  #: more than a pthread_mutex_t has on any platform

_ROBUST = 1
_SHARED = 1
_ERRORCHECK = 2

# Does not let other threads run, which would cost more than the call.
_quick = ctypes.PyDLL(None)
_slow = ctypes.CDLL(None)


class _Until(ctypes.Structure):
    """struct timespec."""


_Until._fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class Mutex:
    """A robust mutex at an address in shared memory.

    The kernel unlocks it when the thread that holds it dies, and says so to the next one.
    """

    def __init__(self, address: int) -> None:
        self._at = ctypes.c_void_p(address)
        self._try: Any = _quick.pthread_mutex_trylock
        self._unlock: Any = _quick.pthread_mutex_unlock

    @classmethod
    def make(cls, address: int) -> Mutex:
        """Return a new one at that address."""
        attributes = ctypes.create_string_buffer(NBYTES)
        _done(_quick.pthread_mutexattr_init(attributes))
        try:
            _done(_quick.pthread_mutexattr_setpshared(attributes, _SHARED))
            _done(_quick.pthread_mutexattr_setrobust(attributes, _ROBUST))
            _done(_quick.pthread_mutexattr_settype(attributes, _ERRORCHECK))
            _done(_quick.pthread_mutex_init(ctypes.c_void_p(address), attributes))
        finally:
            _quick.pthread_mutexattr_destroy(attributes)
        return cls(address)

    def acquire(self, timeout: float) -> bool | None:
        """Take the lock.

        Returns:
            True; False: its holder died, and what it guards is to be looked at; None: it was not
            to be had within *timeout* seconds.
        """
        code = self._try(self._at)
        if code == errno.EBUSY:
            clock, wait = _waiting()
            until = time.clock_gettime(clock) + timeout
            left = _Until(int(until), int(until % 1 * 1e9))
            code = wait(self._at, ctypes.byref(left))
        if code == 0:
            return True
        if code == errno.EOWNERDEAD:
            _done(_quick.pthread_mutex_consistent(self._at))
            return False
        if code == errno.EDEADLK:
            # An exception out of nowhere (Ctrl-C) kept this thread from giving it back.
            return False
        if code in (errno.ETIMEDOUT, errno.EBUSY):
            return None
        raise OSError(code, "a lock in shared memory cannot be taken")

    def release(self) -> None:
        """Give the lock back; only the thread that took it may."""
        self._unlock(self._at)


@functools.cache
def _waiting() -> tuple[int, Callable[..., int]]:
    """Return what waits for a mutex, and the clock that it goes by."""
    try:
        by_clock: Any = _slow.pthread_mutex_clocklock
    except AttributeError:  # glibc before 2.30: when the clock is set, waits change
        return time.CLOCK_REALTIME, _slow.pthread_mutex_timedlock
    return time.CLOCK_MONOTONIC, lambda at, until: by_clock(at, time.CLOCK_MONOTONIC, until)


def _done(code: int) -> None:
    if code:
        raise OSError(code, "a lock in shared memory cannot be made")
