"""A lock that threads and processes of one machine share, in the form of a file."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_FIRST = 0.0002  #: seconds after which one who finds it taken tries again
_LONGEST = 0.01  #: seconds between two tries, as they grow


@contextmanager
def locked(
    path: Path, timeout: float, pause: Callable[[float], object] = time.sleep
) -> Iterator[None]:
    """Hold the lock inside ``with``; one thread of all processes holds it at a time.

    The system takes it from a process that dies. The file is made, and stays. A thread that holds
    the lock must not ask for it again: it would wait for itself. Other threads may fork meanwhile,
    and their children do not hold it; but as long as one that did not exec lives, the lock of a
    parent that was killed is not let go of. Do not fork inside the ``with``.

    Args:
        path: of the lock's file, on a local disk.
        timeout: seconds to wait while another holds it.
        pause: waits for so many seconds between two tries; what it raises ends the wait.

    Raises:
        TimeoutError: it was not let go of in time.
        OSError: the file cannot be made: FileNotFoundError where its folder is not there.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _take(descriptor, path, timeout, pause)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a fork may have its own copy
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path, timeout: float, pause: Callable[[float], object]) -> None:
    deadline, seconds = time.monotonic() + timeout, _FIRST
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                why = f"others have kept it locked for {timeout:g} s"
                raise OSError(errno.ETIMEDOUT, why, str(path)) from None
            pause(seconds)
            seconds = min(2 * seconds, _LONGEST)
        else:
            return
