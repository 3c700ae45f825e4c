"""A lock among threads and processes of this machine, which the end of its holder opens."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.runtime import stopping
from pparallel.runtime.processes import forget_in_children, remember_in_children
from pparallel.runtime.processes.inheritance import no_fork
from pparallel.runtime.reopening import Handle, handle, reopened

_FIRST, _LONGEST = 0.001, 0.05  #: seconds between two tries


class Turns:
    """Lets one thread at a time in, of all processes that have it.

    A fork has it as its parent does; it can be sent to other processes, and whoever sends it keeps
    it until it has arrived. The kernel lets the next one in when a holder dies.

    Raises:
        OSError: no descriptor is left.
    """

    def __init__(self) -> None:
        self._have(os.memfd_create("pparallel-turns", os.MFD_CLOEXEC))

    @contextmanager
    def taken(self, what: str) -> Iterator[None]:
        """Wait for the turn of *what*, and have it inside.

        Raises:
            ClosedError: the calling rank is told to stop meanwhile.
            RuntimeError: the calling thread has the turn already, and would wait for itself.
        """
        me = os.getpid(), threading.get_ident()
        if me in self._inside:
            raise RuntimeError(f"{what} is called inside itself: it would wait for its own end")
        # A lock belongs to an open file: each turn opens it anew, so that threads exclude one
        # another too. A fork must not keep it, for it would hold the lock as well.
        with no_fork():
            opened = os.open(f"/proc/self/fd/{self._file}", os.O_RDWR | os.O_CLOEXEC)
            forget_in_children(opened)
        try:
            _wait(opened, what)
            self._inside.add(me)
            yield
        finally:
            self._inside.discard(me)
            with no_fork():
                remember_in_children(opened)
                os.close(opened)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (handle(self._file),)

    def _have(self, file: int) -> None:
        self._file = file
        self._inside: set[tuple[int, int]] = set()
        weakref.finalize(self, os.close, file).atexit = False  # the kernel does so anyway


def _received(found: Handle) -> Turns:
    turns = Turns.__new__(Turns)
    turns._have(reopened(found, os.O_RDWR, "a lock"))
    return turns


def _wait(opened: int, what: str) -> None:
    signal = stopping.current()
    told = threading.Event() if signal is None else signal
    pause = _FIRST
    while not _locked(opened):
        if told.wait(pause):
            raise ClosedError(f"the wait for {what}", "is over: the job ends", consequence=True)
        pause = min(2 * pause, _LONGEST)


def _locked(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
