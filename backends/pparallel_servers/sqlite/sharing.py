"""The files that this process has open, and what becomes of them when it forks.

sqlite must not be carried over a fork: a child that uses the file would count on locks that its
parent holds, and lose what it has pushed when the parent ends. So all connections are closed
before a fork and opened again when they are next used, on both sides.

Source: "How To Corrupt An SQLite Database File" (sqlite.org), section 2.6.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from pparallel_servers.sqlite.file import Options
from pparallel_servers.sqlite.place import Identity, Place, identity

_places: dict[tuple[Identity | None, Options], Place] = {}
_changing = threading.RLock()


def join(path: Path, options: Options) -> Place:
    """Return what this process shares of the file at *path*; each must :func:`leave` it.

    Raises:
        ConfigError: the file is not one of an ordered server.
        OSError: it cannot be read or written.
    """
    with _changing:
        place = _places.get((identity(path), options))
        if place is None:
            place = Place(path, options)
            _places[place.identity, options] = place
        place.users += 1
        return place


def leave(place: Place) -> None:
    """Say that one server less uses *place*; with the last one it is closed."""
    with _changing:
        place.users -= 1
        if not place.users:
            del _places[place.identity, place.options]
            place.close()


def _before_fork() -> None:
    _changing.acquire()
    for each in _places.values():
        each.suspend()


def _after_in_parent() -> None:
    for each in _places.values():
        each.resume()
    _changing.release()


def _after_in_child() -> None:
    for each in _places.values():
        each.renew()
    _changing.release()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
