"""The way to values in a file."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Hashable
from time import monotonic
from typing import Any, NamedTuple

from typing_extensions import Buffer, override

from pparallel.errors import ClosedError, SerializationError
from pparallel.interfaces.ordered_server import Found
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import stopping
from pparallel.runtime.client_server import ServerClient
from pparallel.runtime.naming import decode, encode
from pparallel.runtime.scratch import Loan, Scratch
from pparallel_servers.clients import filled
from pparallel_servers.sqlite import values
from pparallel_servers.sqlite.faults import DamagedRowError
from pparallel_servers.sqlite.place import Place
from pparallel_servers.sqlite.sharing import leave

_KEYS = "SELECT key, min(id) FROM held GROUP BY key ORDER BY key"
_HELD = "SELECT id, version FROM held WHERE key = ? ORDER BY id DESC LIMIT ?"


class Held(NamedTuple):
    """A version that the file holds, and the number of its value."""

    number: int
    version: bytes


class Waiting:
    """A call of ``wait``; *error* ends it."""

    error: ClosedError | None = None


class SqliteClient(ServerClient):
    """Uses a file that others use too; each operation is one transaction."""

    def __init__(self, place: Place, serializer: Serializer, depth: int) -> None:
        self._place = place
        self._serializer = serializer
        self._depth = depth
        self._scratch = Scratch()
        self._waiting: set[Waiting] = set()
        self._is_closed = False

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        name, new = _key(key), _version(version)
        previous = None if prev_version is None else _version(prev_version)
        buffers = self._serializer.dumps(value)
        with self._place.writing() as connection:
            held = _held(connection, name)
            if held and held[0].version != previous:
                return False
            kept = [each for each in held if each.version != new][: self._depth - 1]
            values.delete(connection, (each.number for each in held if each not in kept))
            values.write(connection, name, new, buffers)
        self._place.watch.tell()
        return True

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        return self._fetched(key, version, None)

    @override
    def pull_into(self, key: Hashable, version: Hashable | None, into: Any) -> Found | None:
        with self._scratch.loan() as loan:
            return filled(self._fetched(key, version, loan), into)

    @override
    def fetch_unless(self, key: Hashable, version: Hashable | None) -> Found | None:
        return self._newer(_key(key), None if version is None else _version(version))

    @override
    def wait(self, key: Hashable, version: Hashable | None, timeout: float | None) -> Found | None:
        name, known = _key(key), None if version is None else _version(version)
        deadline = math.inf if timeout is None else monotonic() + timeout
        waiting = Waiting()
        self._waiting.add(waiting)
        try:
            with stopping.telling(lambda: self._end(waiting, _stopped())):
                return self._newer_in_time(waiting, name, known, deadline)
        finally:
            self._waiting.discard(waiting)

    @override
    def versions(self, key: Hashable) -> list[Any]:
        name = _key(key)
        with self._place.reading() as connection:
            held = _held(connection, name, self._depth)
            return [_decoded(each.number, "version", each.version) for each in reversed(held)]

    @override
    def keys(self) -> list[Any]:
        with self._place.reading() as connection:
            return [_decoded(number, "key", key) for key, number in connection.execute(_KEYS)]

    @override
    def delete(self, key: Hashable) -> bool:
        name = _key(key)
        with self._place.writing() as connection:
            held = _held(connection, name)
            values.delete(connection, (each.number for each in held))
        return bool(held)

    @override
    def close(self) -> None:
        self._is_closed = True
        for each in self._waiting.copy():
            self._end(each, ClosedError("the ordered server"))
        leave(self._place)

    def _fetched(
        self, key: Hashable, version: Hashable | None, scratch: Loan | None
    ) -> Found | None:
        name = _key(key)
        wanted = None if version is None else _version(version)
        with self._place.reading() as connection:
            for each in _held(connection, name, 1 if wanted is None else self._depth):
                if wanted in (None, each.version):
                    buffers = values.read(connection, each.number, scratch)
                    found = _decoded(each.number, "version", each.version)
                    break
            else:
                return None
        return self._loaded(each.number, buffers), found

    def _newer_in_time(
        self, waiting: Waiting, name: bytes, known: bytes | None, deadline: float
    ) -> Found | None:
        while True:
            seen = self._place.watch.changes
            if self._is_closed:
                raise ClosedError("the ordered server")
            if waiting.error is not None:
                raise waiting.error
            found = self._newer(name, known)
            if found is not None or monotonic() >= deadline:
                return found
            self._place.watch.wait(seen, deadline)

    def _newer(self, name: bytes, known: bytes | None) -> Found | None:
        with self._place.reading() as connection:
            held = _held(connection, name, 1)
            if not held or held[0].version == known:
                return None
            number = held[0].number
            buffers = values.read(connection, number)
            version = _decoded(number, "version", held[0].version)
        return self._loaded(number, buffers), version

    def _loaded(self, number: int, buffers: list[Buffer]) -> Any:
        try:
            return self._serializer.loads(buffers)
        except SerializationError as error:
            error.add_note(f"It is the value in row {number} of the table 'held' in {self._place}.")
            raise

    def _end(self, waiting: Waiting, error: ClosedError) -> None:
        waiting.error = error
        self._place.watch.tell()


def _key(key: Hashable) -> bytes:
    return encode("a key", key)


def _version(version: Hashable) -> bytes:
    return encode("a version", version)


def _decoded(number: int, what: str, data: bytes) -> Any:
    """Return the key or version in a row.

    Raises:
        DamagedRowError: no server has written it.
    """
    try:
        return decode(data)
    except ValueError as error:
        raise DamagedRowError(number, f"its {what}, {error}") from error


def _held(connection: sqlite3.Connection, name: bytes, count: int = -1) -> list[Held]:
    """Return what is held of a key, the newest first; all of it, or *count* versions."""
    return [Held(*row) for row in connection.execute(_HELD, (name, count))]


def _stopped() -> ClosedError:
    return ClosedError("the ordered server", "is closing: the job ends", consequence=True)
