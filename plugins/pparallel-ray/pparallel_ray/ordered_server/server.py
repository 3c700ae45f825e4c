"""Ordered server whose values an actor of a Ray cluster keeps."""

from __future__ import annotations

import ctypes
from collections.abc import Hashable
from typing import Any

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.ordered_server import (
    Found,
    OrderedServer,
    check_hashable,
    check_version,
    copy_into,
)
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.member import Member
from pparallel.runtime.shm.copying import address_of
from pparallel_ray.cluster import Cluster
from pparallel_ray.ordered_server.client import KeeperClient
from pparallel_ray.ordered_server.config import RayOrderedServerConfig
from pparallel_ray.ordered_server.finding import found


class RayOrderedServer(OrderedServer):
    """Keeps the values in an actor, which is asked by all members and never reads them.

    The actor has no second life, for that would be an empty one: once it has ended, everything
    raises ``PeerLostError``.
    """

    def __init__(
        self,
        config: RayOrderedServerConfig,
        *,
        member: Member,
        serializer: Serializer,
        name: str,
    ) -> None:
        self._config, self._member, self._serializer = config, member, serializer
        self._name = name
        self._cluster = Cluster(config.cluster)
        self._client: KeeperClient | None = None
        self._is_ours = False

    @property
    @override
    def hosting(self) -> bool:
        return self._member.rank == 0

    @override
    def open(self) -> None:
        self._cluster.open()
        try:
            actor, self._is_ours = found(self._config, self._member, self._name)
        except BaseException:
            self._cluster.close()
            raise
        self._client = KeeperClient(actor, self._config.name or self._name)

    @override
    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close(ends_keeper=self._is_ours)
        self._cluster.close()

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        check_hashable("a key", key)
        check_version(version)
        check_hashable("a version", prev_version)
        client = self._opened()
        return client.push(key, version, prev_version, self._serializer.dumps(value))

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        self._check(key, version)
        return self._own(self._opened().pull("pull", key, version))

    @override
    def pull(
        self, key: Hashable, version: Hashable | None = None, into: Any = None
    ) -> Found | None:
        if into is None:
            return self.fetch(key, version)
        self._check(key, version)
        answer = self._opened().pull("pull", key, version)
        if answer is None:
            return None
        buffers, newest = answer
        copy_into(self._serializer.loads([_as_writable(each) for each in buffers]), into)
        return into, newest

    @override
    def wait(
        self, key: Hashable, version: Hashable | None = None, timeout: float | None = None
    ) -> Found | None:
        self._check(key, version)
        client = self._opened()
        if timeout is not None and timeout <= 0:
            return self._own(client.pull("pull_unless", key, version))
        return self._own(client.wait(key, version, timeout))

    @override
    def versions(self, key: Hashable) -> list[Any]:
        check_hashable("a key", key)
        return list(self._opened().ask("versions", key))

    @override
    def keys(self) -> list[Any]:
        return list(self._opened().ask("keys"))

    @override
    def delete(self, key: Hashable) -> bool:
        check_hashable("a key", key)
        return bool(self._opened().ask("delete", key))

    def _own(self, answer: tuple[list[Any], Any] | None) -> Found | None:
        if answer is None:
            return None
        buffers, version = answer
        return self._serializer.loads([bytearray(each) for each in buffers]), version

    def _opened(self) -> KeeperClient:
        if self._client is None:
            raise ClosedError("the ordered server", "is not open")
        return self._client

    def _check(self, key: Hashable, version: Hashable | None) -> None:
        check_hashable("a key", key)
        check_hashable("a version", version)


def _as_writable(buffer: Any) -> memoryview:
    """Return what lies in Ray's store as memory of which a serializer makes no copy.

    It is for building objects over it that are read once: others read the same memory.
    """
    view = memoryview(buffer).cast("B")
    if not view.readonly or not len(view):
        return view
    alias = (ctypes.c_char * len(view)).from_address(address_of(view))
    alias.source = view  # type: ignore[attr-defined]  # it is there as long as what is made of it
    return memoryview(alias).cast("B")
