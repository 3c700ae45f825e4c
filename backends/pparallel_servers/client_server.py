"""An ordered server that reaches its values through a client."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.ordered_server import (
    Found,
    OrderedServer,
    check_hashable,
    check_version,
)
from pparallel_servers.clients import Client


class ClientOrderedServer(OrderedServer):
    """Checks arguments and passes calls on to a client, which ``open`` and ``close`` set."""

    _client: Client | None = None

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
        self._check(key, version)
        return self._opened().fetch(key, version)

    @override
    def pull(
        self, key: Hashable, version: Hashable | None = None, into: Any = None
    ) -> Found | None:
        if into is None:
            return self.fetch(key, version)
        self._check(key, version)
        return self._opened().pull_into(key, version, into)

    @override
    def wait(
        self, key: Hashable, version: Hashable | None = None, timeout: float | None = None
    ) -> Found | None:
        self._check(key, version)
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
        if self._client is not None:
            self._client.close()
            self._client = None

    def _opened(self) -> Client:
        if self._client is None:
            raise ClosedError("the ordered server", "is not open")
        return self._client

    def _check(self, key: Hashable, version: Hashable | None) -> None:
        check_hashable("a key", key)
        check_hashable("a version", version)
