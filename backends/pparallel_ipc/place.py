"""Where members that others start meet: a folder that nobody else may enter."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pparallel.errors import ConfigError

_ROOM = 90  #: bytes of a folder's path, so that a socket's fits in the kernel's 108


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
