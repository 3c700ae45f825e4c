"""A pipe by which the kernel itself kills children when their parent is gone.

The parent holds the only writing end and never writes. A child opens the reading end anew, which
makes an open file of its own, and asks for ``SIGKILL`` as the signal of its input. So the child
ends even while C code holds its GIL, and while it is stopped. ``PR_SET_PDEATHSIG`` alone would not
do: it fires when the thread that forked ends.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import threading

from pparallel.runtime.processes import descriptors
from pparallel.runtime.processes.inheritance import private

_F_SETSIG = getattr(fcntl, "F_SETSIG", 10)  #: the fcntl module has no name for it


class _Pipe:
    """This process's pipe, made when first asked for and kept for life."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self._lock = threading.Lock()
        self.ends: tuple[int, int] | None = None

    def reader(self) -> int:
        with self._lock:
            if self.ends is None:
                self.ends = private(descriptors.pipe)
            return self.ends[0]


_pipe = _Pipe()


def reader() -> int:
    """Return the end that this process's children tie themselves to."""
    return _pipe.reader()


def held() -> set[int]:
    """Return the descriptors that this process keeps for life."""
    return set(_pipe.ends or ())


def tie(inherited: int) -> None:
    """Let the kernel kill this process when its parent is gone.

    Args:
        inherited: the parent's :func:`reader`; it is closed.
    """
    own = os.open(f"/proc/self/fd/{inherited}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    own = descriptors.lifted(own)
    os.close(inherited)
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    watch = select.poll()
    watch.register(own, select.POLLIN)
    if watch.poll(0):  # it was gone before the kernel knew whom to kill
        os.kill(os.getpid(), signal.SIGKILL)
