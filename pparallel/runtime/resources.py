"""Resources that run out: threads, file descriptors, memory, disk space.

One reading of the system's errors for all: the operation fails with ``ResourceExhaustedError``,
and what it had begun is undone. That a resource ran out says nothing about another member.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pparallel.errors import ResourceExhaustedError

_DESCRIPTORS = "file descriptors", "close some, or raise the limit (ulimit -n)"
_MEMORY = "memory", "free some, or raise the limit (ulimit -v, the container's)"
_DISK = "disk space", "free some on the file system"
_THREADS = "threads", "let some end, or raise the limit (ulimit -u, the container's pids.max)"

_RESOURCES = {
    errno.EMFILE: _DESCRIPTORS,
    errno.ENFILE: _DESCRIPTORS,
    errno.ETOOMANYREFS: _DESCRIPTORS,
    errno.ENOMEM: _MEMORY,
    errno.ENOBUFS: _MEMORY,
    errno.ENOSPC: _DISK,
    errno.EDQUOT: _DISK,
}


def is_exhausted(error: BaseException) -> bool:
    """Return whether *error* says that a resource of this process or machine ran out."""
    if isinstance(error, OSError):
        return isinstance(error, ResourceExhaustedError) or error.errno in _RESOURCES
    return isinstance(error, MemoryError)


def explained(error: BaseException, what: str) -> ResourceExhaustedError:
    """Return *error*, for which :func:`is_exhausted` is true, with advice.

    Args:
        error: the system's.
        what: the operation that failed.
    """
    if isinstance(error, ResourceExhaustedError):
        return error
    number = (isinstance(error, OSError) and error.errno) or errno.ENOMEM
    return ResourceExhaustedError(what, _RESOURCES[number][0], number, _RESOURCES[number][1])


@contextmanager
def explaining(what: str) -> Iterator[None]:
    """Raise ``ResourceExhaustedError`` for what runs out inside; other errors pass as they are."""
    try:
        yield
    except (OSError, MemoryError) as error:
        if not is_exhausted(error) or isinstance(error, ResourceExhaustedError):
            raise
        raise explained(error, what) from error


def start_thread(thread: threading.Thread) -> threading.Thread:
    """Start *thread* and return it. Callers count it as running only after this has returned.

    Raises:
        ResourceExhaustedError: no thread can be started.
    """
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        if thread.ident is not None:  # started before: a defect of the caller
            raise
        what = f"the start of thread {thread.name!r}"
        raise ResourceExhaustedError(what, _THREADS[0], errno.EAGAIN, _THREADS[1]) from error
    return thread
