"""The operations, as exchanges with the server."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from time import monotonic
from typing import Any

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.ordered_server import Found, copy_into
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import stopping
from pparallel.runtime.client_server import ServerClient
from pparallel.runtime.scratch import Scratch
from pparallel_redis import forks
from pparallel_redis.changing import Change, Changing
from pparallel_redis.config import RedisOrderedServerConfig
from pparallel_redis.dialing import Dialer
from pparallel_redis.fetching import Fetching
from pparallel_redis.keys import Keys
from pparallel_redis.lane import Lanes
from pparallel_redis.listener import Listener, Watch
from pparallel_redis.naming import decode, encode
from pparallel_redis.records import made
from pparallel_redis.scripts import DELETE, PUSH


class Client(ServerClient):
    """Uses one server for one process, and for its forks each by itself."""

    def __init__(
        self, dialer: Dialer, serializer: Serializer, config: RedisOrderedServerConfig
    ) -> None:
        self._dialer = dialer
        self._serializer = serializer
        self._config = config
        self._keys = Keys(config.namespace)
        self.renew()

    def renew(self) -> None:
        """Have connections of one's own; none is made yet."""
        self.lanes = Lanes(self._dialer)
        self._listener = Listener(self.lanes)
        self._scratch = Scratch()
        self._fetching = Fetching(self.lanes, self._keys)
        self._changing = Changing(self.lanes, self._keys, self._config.min_replicas)

    def abandon(self) -> None:
        """Let go of the connections, in a fork: they are the parent's."""
        self.lanes.abandon()
        self._listener.abandon()

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        name, new = _key(key), _version(version)
        previous = b"" if prev_version is None else _version(prev_version)
        buffers = self._serializer.dumps(value)
        life = b"" if self._config.ttl is None else b"%d" % max(1, round(self._config.ttl * 1000))
        rest = [self._keys.stem, self._keys.channel(name)]

        def change(token: bytes) -> Change:
            record, pieces = made(buffers, token)
            depth = b"%d" % self._config.version_depth
            return Change(PUSH, [new, previous, depth, life, record, *rest], pieces)

        return self._changing.make(self._keys.hash(name), change)

    @override
    def delete(self, key: Hashable) -> bool:
        change = Change(DELETE, [self._keys.stem], [])
        return self._changing.make(self._keys.hash(_key(key)), lambda _: change)

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        wanted = None if version is None else _version(version)
        return self._found(self._fetching.fetch(_key(key), wanted))

    @override
    def pull_into(self, key: Hashable, version: Hashable | None, into: Any) -> Found | None:
        wanted = None if version is None else _version(version)
        with self._scratch.loan() as loan:
            found = self._found(self._fetching.fetch(_key(key), wanted, scratch=loan))
            if found is None:
                return None
            copy_into(found[0], into)
            return into, found[1]

    @override
    def fetch_unless(self, key: Hashable, version: Hashable | None) -> Found | None:
        """Return the newest unless it is *version*."""
        known = None if version is None else _version(version)
        return self._found(self._fetching.fetch(_key(key), None, known=known))

    @override
    def wait(self, key: Hashable, version: Hashable | None, timeout: float | None) -> Found | None:
        name, known = _key(key), None if version is None else _version(version)
        deadline = math.inf if timeout is None else monotonic() + timeout
        found = self._fetching.fetch(name, None, known=known)
        if found is not None:
            return self._found(found)
        with self._listener.watching(self._keys.channel(name)) as watch:
            stop = Stop(watch)
            with stopping.telling(stop.set):
                return self._found(self._newer_in_time(watch, stop, name, known, deadline))

    @override
    def versions(self, key: Hashable) -> list[Any]:
        return [decode(each) for each in self._fetching.versions(_key(key))]

    @override
    def keys(self) -> list[Any]:
        return [decode(each) for each in self._fetching.names()]

    @override
    def close(self) -> None:
        forks.forget(self)
        self.lanes.close()
        self._listener.close()

    def _newer_in_time(
        self, watch: Watch, stop: Stop, name: bytes, known: bytes | None, deadline: float
    ) -> tuple[bytes, list[Any]] | None:
        while True:
            seen = watch.changes
            if stop.is_set:
                raise ClosedError(
                    "the ordered server", "is closing: the job ends", consequence=True
                )
            if watch.error is not None:
                raise watch.error
            found = self._fetching.fetch(name, None, known=known)
            if found is not None or monotonic() >= deadline:
                return found
            watch.wait(seen, deadline)

    def _found(self, found: tuple[bytes, Sequence[Any]] | None) -> Found | None:
        if found is None:
            return None
        version, buffers = found
        return self._serializer.loads(buffers), decode(version)


class Stop:
    """Whether one call of ``wait`` is to end with the job."""

    def __init__(self, watch: Watch) -> None:
        self.is_set = False
        self._watch = watch

    def set(self) -> None:
        """Have it end."""
        self.is_set = True
        self._watch.tell()


def _key(key: Hashable) -> bytes:
    return encode("a key", key)


def _version(version: Hashable) -> bytes:
    return encode("a version", version)
