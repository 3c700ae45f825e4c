"""Wakes all who wait for one member."""

from __future__ import annotations

import os
import threading

from pparallel.runtime.processes import forget_in_children, remember_in_children


class Alarm:
    """A descriptor that tells all who wait for one member that they need wait no more."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        forget_in_children(self.fd)
        self._lock = threading.RLock()  # a signal handler may ring while the thread does

    def ring(self) -> None:
        """Tell them; it is never taken back."""
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Close the descriptor; nobody may wait any more."""
        with self._lock:
            descriptor, self.fd = self.fd, -1
            remember_in_children(descriptor)
            os.close(descriptor)
