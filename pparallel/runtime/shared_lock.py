"""A lock of the threads and processes of one machine that can be sent to others."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.runtime import stopping
from pparallel.runtime.file_lock import locked
from pparallel.runtime.reopening import Handle, handle, reopened


class SharedLock:
    """One thread at a time holds it, of all processes that have it; the kernel frees a dead one's.

    A fork has it as its parent does. It can be sent to other processes by one that keeps it until
    it has arrived.

    Raises:
        OSError: no descriptor is left.
    """

    def __init__(self) -> None:
        self._have(os.memfd_create("pparallel-lock", os.MFD_CLOEXEC))

    @contextmanager
    def held(self, what: str) -> Iterator[None]:
        """Hold the lock inside ``with``, for *what*.

        Raises:
            ClosedError: the calling rank is told to stop while it waits.
            RuntimeError: the calling thread holds it already, and would wait for itself.
        """
        me = os.getpid(), threading.get_ident()
        if me in self._holders:
            raise RuntimeError(f"{what} is called inside itself: it would wait for its own end")

        def pause(seconds: float) -> None:
            signal = stopping.current()
            if signal is None:
                time.sleep(seconds)
            elif signal.wait(seconds):
                raise ClosedError(f"the wait for {what}", "is over: the job ends", consequence=True)

        # A lock belongs to an open file: this opens it anew, so that threads exclude one another.
        with locked(Path(f"/proc/self/fd/{self._file}"), math.inf, pause):
            self._holders.add(me)
            try:
                yield
            finally:
                self._holders.discard(me)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (handle(self._file),)

    def _have(self, file: int) -> None:
        self._file = file
        self._holders: set[tuple[int, int]] = set()
        weakref.finalize(self, os.close, file).atexit = False  # the kernel does so anyway


def _received(found: Handle) -> SharedLock:
    lock = SharedLock.__new__(SharedLock)
    lock._have(reopened(found, os.O_RDWR, "a lock"))
    return lock
