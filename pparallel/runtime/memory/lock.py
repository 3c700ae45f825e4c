"""A lock between the threads of a process, and between processes if need be."""

from __future__ import annotations

import fcntl
import os
import threading
import time

from pparallel.runtime.forks import Inherited

PATIENCE = 1.0  #: seconds to wait for a process that is stopped while it has the lock
_AGAIN = 0.0001


class Lock:
    """Held in ``with``; a process that ends lets it go, and a forked child holds nothing.

    A thread that enters twice, as a finalizer in the midst of what the lock guards, gets
    ``RuntimeError`` and does not wait for itself.

    Attributes:
        fd: the file that processes lock; -1: this process uses it alone.
    """

    def __init__(self, fd: int = -1) -> None:
        self.fd = fd
        self._own: tuple[int, int] = (0, -1)  # a process, and its own opening of the file
        self._reset()
        _locks.add(self)

    def _reset(self) -> None:
        self._lock, self._is_held = threading.RLock(), False

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._is_held:
            self._lock.release()
            raise RuntimeError("this thread was interrupted in the midst of the same")
        try:
            if self.fd >= 0:
                self._lock_file()
            self._is_held = True
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._is_held = False
        if self.fd >= 0:
            fcntl.flock(self._own[1], fcntl.LOCK_UN)
        self._lock.release()

    def close(self) -> None:
        """Let go of the file."""
        own, self._own = self._own[1], (0, -1)
        if own >= 0:
            os.close(own)

    def _lock_file(self) -> None:
        pid, until = os.getpid(), time.monotonic() + PATIENCE
        if self._own[0] != pid:
            # An inherited opening would share the lock with the parent.
            self.close()
            self._own = pid, os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        while True:
            try:
                return fcntl.flock(self._own[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError("a process that is stopped holds the lock") from None
            time.sleep(_AGAIN)


_locks = Inherited(Lock._reset)
