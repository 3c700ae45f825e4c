"""Notes of who took which task: a pipe that workers write to and the pool reads.

A worker notes a task before it rebuilds its arguments. What was noted stays when the worker dies.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from pparallel.runtime import reopening
from pparallel.runtime.processes import close_private, private

Handle: TypeAlias = reopening.Handle

READY = -1  #: as a job: the worker asks for its first task

_FORM = struct.Struct("<qqq")
_MOST = _FORM.size * 1024

_doors: dict[Handle, int] = {}  #: of this process, a worker: the pipes of its pool


class Note(NamedTuple):
    """That the process *pid* has taken a task."""

    pid: int
    job: int
    chunk: int


class Notes:
    """The pool's end of the pipe.

    Raises:
        OSError: no descriptors are left.
    """

    def __init__(self) -> None:
        self._ends = private(lambda: os.pipe2(os.O_CLOEXEC))
        os.set_blocking(self._ends[0], False)
        self.handle = reopening.handle(self._ends[1])

    def read(self) -> list[Note]:
        """Return what has been noted since the last time."""
        found = b""
        with suppress(BlockingIOError):
            while piece := os.read(self._ends[0], _MOST):
                found += piece
        return [Note(*each) for each in _FORM.iter_unpack(found)]

    def close(self) -> None:
        """Give the descriptors back."""
        close_private(*self._ends)


def note(handle: Handle, job: int, chunk: int = 0) -> None:
    """Note that this process has taken a task; a thread of the pool's own process needs no note."""
    if handle[0] == os.getpid():
        return
    with suppress(OSError):  # the pool is gone, and nobody reads notes any more
        if handle not in _doors:
            _doors[handle] = reopening.reopened(handle, os.O_WRONLY, "the notes of a pool")
        os.write(_doors[handle], _FORM.pack(os.getpid(), job, chunk))
