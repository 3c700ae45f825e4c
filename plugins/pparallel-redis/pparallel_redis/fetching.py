"""Reading: plain commands, which may be asked again."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from typing import Any

from typing_extensions import Buffer

from pparallel.runtime.scratch import Loan
from pparallel_redis.keys import Keys
from pparallel_redis.lane import Lane, Lanes
from pparallel_redis.records import Record, Views, cut, memory, read, split
from pparallel_redis.wire import ReplyError, Wire

_ALIGN = 64  #: buffers in scratch memory begin at a multiple of it
_MANY = b"1000"  #: keys that the server looks at before it answers

Fetched = tuple[bytes, list[Buffer]]  #: a version as bytes, and the buffers of its value


class Fetching:
    """Reads what one namespace holds."""

    def __init__(self, lanes: Lanes, keys: Keys) -> None:
        self._lanes = lanes
        self._keys = keys

    def fetch(
        self,
        name: bytes,
        wanted: bytes | None,
        *,
        known: bytes | None = None,
        scratch: Loan | None = None,
    ) -> Fetched | None:
        """Return a version and its value.

        Args:
            name: of the key.
            wanted: which version; ``None``: the newest.
            known: if this is the version, nothing is returned.
            scratch: where large values are read; by default memory of their own.

        Raises:
            OSError: the value is damaged.
        """
        with self._lanes.lent() as lane:
            return self._fetched(lane, name, wanted, known, scratch)

    def versions(self, name: bytes) -> list[bytes]:
        """Return the versions of a key, the newest last."""
        with self._lanes.lent() as lane:
            newest, order = self._ask(lane, b"HMGET", self._keys.hash(name), b"n", b"o")
        return [] if newest is None else [*reversed(list(_older(order or b""))), newest]

    def names(self) -> list[bytes]:
        """Return the names of all keys, in their order."""
        with self._lanes.lent() as lane:
            found = self._lanes.run(lane, lambda wire, _: self._scanned(wire))
        return sorted(map(self._keys.name, found))

    def _fetched(
        self,
        lane: Lane,
        name: bytes,
        wanted: bytes | None,
        known: bytes | None,
        scratch: Loan | None,
    ) -> Fetched | None:
        key = self._keys.hash(name)
        fields = (b"n", b"r") if wanted is None else (b"n", b"r", b"v" + wanted)
        missed = b""
        while True:
            version, newest, *older = self._ask(lane, b"HMGET", key, *fields)
            stored, version = _chosen(version, newest, older, wanted)
            if stored is None or version == known:
                return None
            record = self._read(bytes(stored), name)
            if not record.pieces:
                return version, split(record.content, record.sizes)
            if record.token == missed:
                raise self._lost(name)
            buffers, views = _places(record, scratch)
            if self._filled(lane, record, views):
                return version, buffers
            missed = record.token  # replaced meanwhile, or gone

    def _filled(self, lane: Lane, record: Record, views: Views) -> bool:
        """Read the pieces of a value to where they belong; return whether all are there."""
        pieces = cut(views)

        def act(wire: Wire, _: bool) -> bool:
            stem = self._keys.stem + record.token
            wire.send((b"GET", b"%b.%d" % (stem, each)) for each in range(record.pieces))
            replies = [wire.receive(into=each) for each in pieces]
            for each in replies:
                if isinstance(each, ReplyError):
                    raise each
            return all(reply is piece for reply, piece in zip(replies, pieces, strict=True))

        return len(pieces) == record.pieces and self._lanes.run(lane, act)

    def _scanned(self, wire: Wire) -> set[bytes]:
        found: set[bytes] = set()
        cursor = b"0"
        while True:
            cursor, keys = wire.ask(
                b"SCAN", cursor, b"MATCH", self._keys.all_hashes, b"COUNT", _MANY
            )
            found.update(keys)
            if cursor == b"0":
                return found

    def _ask(self, lane: Lane, *command: bytes) -> Any:
        return self._lanes.run(lane, lambda wire, _: wire.ask(*command))

    def _read(self, stored: bytes, name: bytes) -> Record:
        try:
            return read(stored)
        except ValueError as error:
            raise self._damaged(name, str(error)) from error

    def _lost(self, name: bytes) -> OSError:
        return self._damaged(
            name,
            "the newest value has lost its pieces: another program deleted them, or memory"
            " was short and the server threw them away (maxmemory-policy)",
        )

    def _damaged(self, name: bytes, why: str) -> OSError:
        where = f"key {name.decode('utf-8', 'replace')!r} in Redis at {self._lanes.dialer.place}"
        return OSError(errno.EIO, f"{where}: {why}")


def _chosen(version: Any, newest: Any, older: list[Any], wanted: bytes | None) -> tuple[Any, bytes]:
    """Return the record that is *wanted*, and its version."""
    if wanted is None or version == wanted:
        return newest, version
    return older[0], wanted


def _places(record: Record, scratch: Loan | None) -> tuple[list[Buffer], Views]:
    """Return memory for each buffer of a value."""
    if scratch is None:
        views = [memory(size) for size in record.sizes]
        return list(views), views
    spans = [-(-size // _ALIGN) * _ALIGN for size in record.sizes]
    whole = scratch.take(sum(spans))
    views = []
    for size, span in zip(record.sizes, spans, strict=True):
        views.append(whole[:size])
        whole = whole[span:]
    return list(views), views


def _older(order: bytes) -> Iterator[bytes]:
    """Yield the versions before the newest, the newest of them first."""
    at = 0
    while at < len(order):
        (length,) = struct.unpack_from("<I", order, at)
        yield order[at + 5 : at + 4 + length]
        at += 4 + length
