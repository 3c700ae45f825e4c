"""What sqlite says is wrong, in the standard library's errors."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

_LOW = 1 << 20  #: bytes below which a disk counts as full when something cannot be written


class DamagedRowError(sqlite3.DatabaseError):
    """Raised when a row of the table of versions is not as it was written."""

    def __init__(self, number: int, why: object) -> None:
        super().__init__(
            f"row {number} of the table 'held': {why}; to do without that version:"
            f" DELETE FROM held WHERE id = {number}"
        )


def is_busy(error: sqlite3.Error | BlockingIOError) -> bool:
    """Return whether another connection keeps the file locked."""
    return isinstance(error, BlockingIOError) or _kind(error) in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    )


def is_no_database(error: sqlite3.Error) -> bool:
    """Return whether the file is not one of sqlite's."""
    return _kind(error) == sqlite3.SQLITE_NOTADB


def fault(path: Path, error: sqlite3.Error, timeout: float) -> Exception:
    """Return the error that says what went wrong with the file at *path*."""
    if isinstance(error, DamagedRowError):
        return damaged(path, error)
    match _kind(error):
        case sqlite3.SQLITE_FULL:
            return _full(path)
        case sqlite3.SQLITE_IOERR if _free(path) < _LOW:
            return _full(path)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return _unwritable(path)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return locked(path, timeout)
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_FORMAT:
            return damaged(path, error)
        case sqlite3.SQLITE_ERROR | sqlite3.SQLITE_CONSTRAINT if hasattr(error, "sqlite_errorcode"):
            # A table or column is missing, or has rows that belong to no version.
            return damaged(path, error)
        case sqlite3.SQLITE_TOOBIG:
            return ValueError(f"{path}: a key or version is too large for a file ({error})")
        case sqlite3.SQLITE_NOMEM:
            return MemoryError(f"{path}: {error}")
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return _os_error(errno.EIO, f"it cannot be read or written ({error}, {name})", path)


def damaged(path: Path, found: object) -> OSError:
    """Return the error that says what was found in the file that no server has written."""
    why = f"the file is damaged: put a copy in its place, or give the path of a new file ({found})"
    return _os_error(errno.EIO, why, path)


def locked(path: Path, timeout: float) -> OSError:
    """Return the error that says that somebody else has not let go of the file in time."""
    why = f"others have kept it locked for {timeout:g} s (the option 'timeout')"
    return _os_error(errno.ETIMEDOUT, why, path)


def _kind(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _full(path: Path) -> OSError:
    why = "the disk is full: nothing was changed, and what was there before still is"
    return _os_error(errno.ENOSPC, why, path)


def _unwritable(path: Path) -> OSError:
    try:
        if os.statvfs(path.parent).f_flag & os.ST_RDONLY:
            return _os_error(errno.EROFS, "it is on a read-only file system", path)
        os.close(os.open(path.parent, os.O_RDONLY))  # which tells if there are no descriptors left
    except OSError as error:
        return _os_error(error.errno or errno.EIO, f"it cannot be opened: {error.strerror}", path)
    why = "it and its folder must be writable (sqlite keeps files beside it)"
    return _os_error(errno.EACCES, why, path)


def _free(path: Path) -> int:
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return _LOW
    return found.f_bavail * found.f_frsize


def _os_error(number: int, why: str, path: Path) -> OSError:
    return OSError(number, why, str(path))
