"""A descriptor that wakes a thread which waits for several descriptors."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from pparallel.runtime.processes import close_private, private


class EventFd:
    """A descriptor that is readable while it is set; no forked child has it. Any thread may use it.

    Attributes:
        fd: the descriptor; -1: it is closed.

    Raises:
        OSError: there is no descriptor for it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # held while the descriptor is used: it is not closed then
        self.fd = private(lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def set(self) -> None:
        """Wake who waits for it; harmless when it is closed."""
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Wake nobody any more; harmless if it is not set."""
        with self._lock, suppress(BlockingIOError):
            if self.fd >= 0:
                os.eventfd_read(self.fd)

    def close(self) -> None:
        """Close the descriptor, for which no thread may wait any more; safe to call again."""
        with self._lock:
            descriptor, self.fd = self.fd, -1
            if descriptor >= 0:
                close_private(descriptor)
