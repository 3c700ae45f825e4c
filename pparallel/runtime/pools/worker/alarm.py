"""A clock that wakes a thread, and that another thread puts forward for a microsecond.

A thread that waits with a time-out of its own has to wake, and to take the GIL from one that
computes, to learn that it need not have: that costs a tenth of a millisecond each time.
"""

from __future__ import annotations

import ctypes
import os
import weakref

_MONOTONIC = 1  #: CLOCK_MONOTONIC
_CLOEXEC = os.O_CLOEXEC  #: TFD_CLOEXEC
_libc = ctypes.PyDLL(None, use_errno=True)  # keeps the GIL: the calls take less than to give it up


class _Times(ctypes.Structure):
    """struct itimerspec."""


_Times._fields_ = [
    ("every_seconds", ctypes.c_long),
    ("every_nanoseconds", ctypes.c_long),
    ("seconds", ctypes.c_long),
    ("nanoseconds", ctypes.c_long),
]


class Alarm:
    """Rings after a while, and then again and again until it is put forward.

    Raises:
        OSError: there is no descriptor left.
    """

    def __init__(self) -> None:
        self._fd = _libc.timerfd_create(_MONOTONIC, _CLOEXEC)
        if self._fd < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        # At the process's end the other thread may read it still, and the kernel closes it.
        weakref.finalize(self, os.close, self._fd).atexit = False

    def set(self, after: float, every: float) -> None:
        """Have it ring after so many seconds, less than one, and then every so many; 0: never."""
        times = _Times(0, int(every * 1e9), 0, int(after * 1e9))
        _libc.timerfd_settime(self._fd, 0, ctypes.byref(times), None)

    def wait(self) -> None:
        """Wait until it rings."""
        os.read(self._fd, 8)
