"""Values in a Redis server."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from contextlib import ExitStack
from typing import Any

from typing_extensions import override

from pparallel.errors import ClosedError, ConfigError
from pparallel.interfaces.ordered_server import (
    Found,
    OrderedServer,
    check_hashable,
    check_version,
)
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.member import Member
from pparallel_redis import checks, forks
from pparallel_redis.client import Client
from pparallel_redis.config import RedisOrderedServerConfig
from pparallel_redis.dialing import dialer

logger = logging.getLogger(__name__)


class RedisOrderedServer(OrderedServer):
    """Keeps values in a Redis server, for processes of any machines.

    Each push is one script. It is sent again where the connection was lost meanwhile, and takes
    effect once. What nobody can know any more is said to be unknown, by ``PeerLostError``.
    """

    def __init__(
        self,
        config: RedisOrderedServerConfig,
        *,
        member: Member,
        serializer: Serializer,
        name: str,
    ) -> None:
        self._config = config
        self._serializer = serializer
        self._path = name if name == config.interface else f"extra.{name}"
        self._kind = _kind(serializer)
        self._client: Client | None = None
        if serializer.runs_code and not config.trusted:
            message = (
                f"what {self._kind!r} reads from Redis may run code; leave the serializer out"
                " for 'safe', or write trusted: true if you trust all who can write to the server"
            )
            raise ConfigError(message, path=f"{self._path}.serializer")

    @override
    def open(self) -> None:
        client = Client(dialer(self._config), self._serializer, self._config)
        with ExitStack() as undo:
            undo.callback(client.close)
            checks.check(client.lanes, self._config, self._kind, self._path)
            forks.keep(client)
            undo.pop_all()
        self._client = client
        logger.info(
            "Values are at %s, as {%s}:*", client.lanes.dialer.place, self._config.namespace
        )

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        check_hashable("a key", key)
        check_version(version)
        check_hashable("a version", prev_version)
        return self._opened().push(key, value, version, prev_version)

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        _check(key, version)
        return self._opened().fetch(key, version)

    @override
    def pull(
        self, key: Hashable, version: Hashable | None = None, into: Any = None
    ) -> Found | None:
        if into is None:
            return self.fetch(key, version)
        _check(key, version)
        return self._opened().pull_into(key, version, into)

    @override
    def wait(
        self, key: Hashable, version: Hashable | None = None, timeout: float | None = None
    ) -> Found | None:
        _check(key, version)
        if timeout is not None and timeout <= 0:
            return self._opened().fetch_unless(key, version)
        return self._opened().wait(key, version, timeout)

    @override
    def versions(self, key: Hashable) -> list[Any]:
        check_hashable("a key", key)
        return self._opened().versions(key)

    @override
    def keys(self) -> list[Any]:
        return self._opened().keys()

    @override
    def delete(self, key: Hashable) -> bool:
        check_hashable("a key", key)
        return self._opened().delete(key)

    @override
    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            forks.forget(client)
            client.close()

    def _opened(self) -> Client:
        if self._client is None:
            raise ClosedError("the ordered server", "is not open")
        return self._client


def _check(key: Hashable, version: Hashable | None) -> None:
    check_hashable("a key", key)
    check_hashable("a version", version)


def _kind(serializer: Serializer) -> str:
    """Return the backend's name, or for a serializer without a config its class."""
    config = getattr(serializer, "config", None)
    return str(getattr(config, "backend", type(serializer).__qualname__))
