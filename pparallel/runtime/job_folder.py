"""Folders in which the members of one job meet, and which a launcher that was killed leaves."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

from pparallel.runtime.processes import close_private, private
from pparallel.runtime.resources import explaining

logger = logging.getLogger(__name__)

_NEW, _HELD = "pparallel-new-", "pparallel-job-"  #: without and with the lock
_ROOM = 70  #: bytes of the parent's path, so that a socket's path fits in the kernel's 108


class JobFolder:
    """A new folder among the temporary files, which only this user may enter.

    Its process holds a lock on it, which the kernel releases when the process ends. Each new folder
    has those of this user removed whose lock is free: their processes were killed.

    Attributes:
        path: where it is.
    """

    def __init__(self) -> None:
        """Make it.

        Raises:
            ResourceExhaustedError: there is no room for it.
            OSError: it cannot be made there.
        """
        usual = tempfile.gettempdir()
        parent = Path(usual if len(os.fsencode(usual)) < _ROOM else "/tmp")
        with suppress(OSError):  # what is left there does no harm
            _remove_left(parent)
        with explaining("making the folder where the members of a job meet"):
            self.path = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
        self._lock = -1
        with suppress(OSError):  # without a lock nobody but this process removes it
            self._lock = private(lambda: _locked(self.path))
            self.path = self.path.rename(str(self.path).replace(_NEW, _HELD))

    def remove(self) -> None:
        """Remove it with all that it holds; safe to call again."""
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, -1
        if lock >= 0:
            close_private(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _locked(folder: Path) -> int:
    """Return a descriptor that holds the lock of *folder*.

    Raises:
        OSError: another process holds it, or there is no such folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove_left(parent: Path) -> None:
    with os.scandir(parent) as entries:
        left = [each for each in entries if each.name.startswith(_HELD)]
    for each in left:
        with suppress(OSError):  # it is in use, or has just been removed
            if each.stat(follow_symlinks=False).st_uid == os.geteuid():
                lock = private(lambda: _locked(Path(each.path)))  # noqa: B023 - called at once
                try:
                    shutil.rmtree(each.path, ignore_errors=True)
                    logger.info("Removed %s, which a killed process had left", each.path)
                finally:
                    close_private(lock)
