"""A descriptor by which a thread that waits for several is told to look."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from pparallel.runtime.processes import close_private, private


class EventFd:
    """A descriptor that is readable while it is set; no forked child has it.

    Any thread may use it, and a signal's handler or a finalizer in the midst of that.

    Attributes:
        fd: the descriptor; -1: it is closed.
        lock: held while it is used: who has it finds the descriptor open, or closed for good.

    Raises:
        OSError: there is no descriptor for it.
    """

    fd = -1

    def __init__(self) -> None:
        self.lock = threading.RLock()
        private(self._make)

    def _make(self) -> int:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return self.fd

    def set(self) -> None:
        """Wake who waits for it; harmless when it is closed."""
        with self.lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Wake nobody any more; harmless if it is not set."""
        with self.lock, suppress(BlockingIOError):
            if self.fd >= 0:
                os.eventfd_read(self.fd)

    def close(self) -> None:
        """Close the descriptor, for which no thread may wait any more; safe to call again."""
        with self.lock:
            descriptor, self.fd = self.fd, -1
            if descriptor >= 0:
                close_private(descriptor)

    def __del__(self) -> None:
        if self.fd >= 0:  # a signal's handler has interrupted who was to have it
            self.close()
