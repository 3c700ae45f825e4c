"""An ordered server that reaches its values through a client."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from typing import Any, Protocol

from typing_extensions import override

from pparallel.errors import ClosedError, ConfigError
from pparallel.interfaces.ordered_server import (
    Found,
    OrderedServer,
    check_hashable,
    check_version,
)
from pparallel.interfaces.serializer import Serializer


class ServerClient(Protocol):
    """How one member reaches the values; arguments have been checked."""

    @abstractmethod
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        """As :meth:`OrderedServer.push`."""

    @abstractmethod
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        """As :meth:`OrderedServer.fetch`."""

    @abstractmethod
    def pull_into(self, key: Hashable, version: Hashable | None, into: Any) -> Found | None:
        """As :meth:`OrderedServer.pull`, into tensors or arrays."""

    @abstractmethod
    def fetch_unless(self, key: Hashable, version: Hashable | None) -> Found | None:
        """Return the newest unless it is *version*."""

    @abstractmethod
    def wait(self, key: Hashable, version: Hashable | None, timeout: float | None) -> Found | None:
        """As :meth:`OrderedServer.wait`."""

    @abstractmethod
    def versions(self, key: Hashable) -> list[Any]:
        """As :meth:`OrderedServer.versions`."""

    @abstractmethod
    def keys(self) -> list[Any]:
        """As :meth:`OrderedServer.keys`."""

    @abstractmethod
    def delete(self, key: Hashable) -> bool:
        """As :meth:`OrderedServer.delete`."""

    @abstractmethod
    def close(self) -> None:
        """Wake those who wait through this client."""


class ClientOrderedServer(OrderedServer):
    """Checks arguments and passes calls on to a client, which ``open`` and ``close`` set."""

    _client: ServerClient | None = None

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        check_hashable("a key", key)
        check_version(version, prev_version)
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
        client = self._client  # another thread may close this too
        if client is not None:
            client.close()
            self._client = None

    def _opened(self) -> ServerClient:
        if self._client is None:
            raise ClosedError("the ordered server", "is not open")
        return self._client

    def _check(self, key: Hashable, version: Hashable | None) -> None:
        check_hashable("a key", key)
        check_hashable("a version", version)


def kind_of(serializer: Serializer) -> str:
    """Return the name of a serializer's backend, or of its class where it has no config."""
    config = getattr(serializer, "config", None)
    return str(getattr(config, "backend", type(serializer).__qualname__))


def check_trust(
    serializer: Serializer, *, trusted: bool, source: str, writable: str, path: str
) -> None:
    """Refuse a serializer that may run code where nobody has said that this is right.

    Args:
        serializer: reads what others wrote.
        trusted: somebody has.
        source: where values come from, as "a file".
        writable: what others write to, as "the file".
        path: of the server in the config.

    Raises:
        ConfigError: it is so; the message says what to write.
    """
    if serializer.runs_code and not trusted:
        message = (
            f"what {kind_of(serializer)!r} reads from {source} may run code; leave the serializer"
            f" out for 'safe', or write trusted: true if you trust all who can write to {writable}"
        )
        raise ConfigError(message, path=f"{path}.serializer")
