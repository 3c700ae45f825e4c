"""The two ways to the values: straight to a store in this process, or by asking its host."""

from __future__ import annotations

import concurrent.futures
import itertools
from abc import abstractmethod
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from typing_extensions import Buffer, override

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError
from pparallel.interfaces.ordered_server import Found
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import stopping
from pparallel.runtime.pending import fail
from pparallel.runtime.rpc import Reply, RpcGroup
from pparallel_servers.store import Snapshot, VersionedStore


class Client(Protocol):
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


class StoreClient(Client):
    """Uses a store in this process, and copies what goes in and out."""

    def __init__(self, store: VersionedStore, serializer: Serializer) -> None:
        self._store = store
        self._serializer = serializer

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        buffers = [bytearray(each) for each in self._serializer.dumps(value)]
        return self._store.push(key, buffers, version, prev_version)

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        return self._found(self._store.pull(key, version))

    @override
    def fetch_unless(self, key: Hashable, version: Hashable | None) -> Found | None:
        return self._found(self._store.pull_unless(key, version))

    @override
    def wait(self, key: Hashable, version: Hashable | None, timeout: float | None) -> Found | None:
        waiter = self._store.wait(key, version, owner=self)
        try:
            with stopping.telling(lambda: _stop(waiter.future)):
                return self._found(waiter.future.result(timeout))
        except concurrent.futures.TimeoutError:
            return None
        finally:
            self._store.withdraw(waiter)

    @override
    def versions(self, key: Hashable) -> list[Any]:
        return self._store.versions(key)

    @override
    def keys(self) -> list[Any]:
        return self._store.keys()

    @override
    def delete(self, key: Hashable) -> bool:
        return self._store.delete(key)

    @override
    def close(self) -> None:
        self._store.dismiss(self, ClosedError("the ordered server"))

    def _found(self, snapshot: Snapshot | None) -> Found | None:
        if snapshot is None:
            return None
        copies: list[Buffer] = [bytearray(each) for each in snapshot.buffers]
        return self._serializer.loads(copies), snapshot.version


class HostClient(Client):
    """Asks the member that keeps the values; values travel as raw buffers."""

    def __init__(self, group: RpcGroup, host: str, serializer: Serializer) -> None:
        self._group = group
        self._host = host
        self._serializer = serializer
        self._tickets = itertools.count()

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        buffers = self._serializer.dumps(value)
        return bool(self._ask("push", (key, version, prev_version), buffers).body)

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        return self._found(self._ask("pull", (key, version)))

    @override
    def fetch_unless(self, key: Hashable, version: Hashable | None) -> Found | None:
        return self._found(self._ask("pull_unless", (key, version)))

    @override
    def wait(self, key: Hashable, version: Hashable | None, timeout: float | None) -> Found | None:
        ticket = next(self._tickets)
        try:
            reply = self._ask("wait", (key, version, ticket), timeout=timeout)
        except CallTimeoutError:
            self._withdraw(ticket)
            return None
        except KeyboardInterrupt:
            self._withdraw(ticket)
            raise
        return self._found(reply)

    @override
    def versions(self, key: Hashable) -> list[Any]:
        return list(self._ask("versions", key).body)

    @override
    def keys(self) -> list[Any]:
        return list(self._ask("keys").body)

    @override
    def delete(self, key: Hashable) -> bool:
        return bool(self._ask("delete", key).body)

    @override
    def close(self) -> None:
        self._tell("dismiss", None)

    def _ask(
        self,
        key: str,
        body: Any = None,
        buffers: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> Reply:
        return self._group.ask(self._host, key, body, buffers, timeout=timeout)

    def _withdraw(self, ticket: int) -> None:
        self._tell("withdraw", ticket)

    def _tell(self, key: str, body: Any) -> None:
        """Ask without waiting: whether the host heard it makes no difference to the caller."""
        with suppress(ClosedError, PeerLostError):
            self._group.ask_async(self._host, key, body)

    def _found(self, reply: Reply) -> Found | None:
        if reply.body is None:
            return None
        (version,) = reply.body
        return self._serializer.loads(reply.buffers), version


def _stop(future: Future[Snapshot]) -> None:
    fail(future, ClosedError("the ordered server", "is closing: the job ends", consequence=True))
