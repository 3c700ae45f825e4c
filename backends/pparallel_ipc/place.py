"""Where the members of one job meet: a folder that nobody else may enter."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pparallel.errors import ConfigError

_ROOM = 90  #: bytes of a folder's path, so that a socket's fits in the kernel's 108


@contextmanager
def new_folder() -> Iterator[Path]:
    """Make a folder of this user's alone, which is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="pparallel-", dir=_parent()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def checked(folder: Path) -> Path:
    """Return *folder* if members may meet there.

    Raises:
        ConfigError: there is no such folder, or others may enter it, or its path is too long.
    """
    path = "transport.directory"
    if len(os.fsencode(folder)) > _ROOM:
        raise ConfigError(f"{folder} is too long for a socket: use a shorter path", path=path)
    try:
        found = folder.stat()
    except OSError as error:
        message = f"members cannot meet in {folder}: {error.strerror}; make it with mkdir -m 700"
        raise ConfigError(message, path=path) from None
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{folder} is no folder", path=path)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        message = f"others may enter {folder}: make it your own, with mode 700"
        raise ConfigError(message, path=path)
    return folder


def _parent() -> str | None:
    """Return where temporary folders go, if the path of a socket there is not too long."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) < _ROOM - 20 else "/tmp"
