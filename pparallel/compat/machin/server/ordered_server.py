"""``machin.parallel.server.ordered_server``: values in versions, kept by one member."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any

from typing_extensions import override

from pparallel.builder import build, load
from pparallel.compat.machin.server.groups import Group, native_of, needed, parts_in, require_member
from pparallel.interfaces.ordered_server import OrderedServer, OrderedServerConfig
from pparallel.interfaces.serializer import SerializerConfig

__all__ = ["OrderedServerBase", "OrderedServerSimple", "OrderedServerSimpleImpl"]


class OrderedServerBase(ABC):
    """What is asked of an ordered server; any object that has these two will do."""

    @abstractmethod
    def push(self, key: Any, value: Any, version: Any, prev_version: Any) -> bool:
        """Store *value* if the newest version of *key* is *prev_version*; return whether it was."""

    @abstractmethod
    def pull(self, key: Any, version: Any = None) -> tuple[Any, Any] | None:
        """Return the value of *version*, by default of the newest, and its version, or ``None``."""


class OrderedServerSimple(OrderedServerBase):
    """Reaches the values of an :class:`OrderedServerSimpleImpl`, from any member of its group.

    It can be sent to other members, and asks nothing of anybody before it is used.

    Args:
        server_name: of the server.
        group: in which that was made.

    Raises:
        DirectoryError: from :meth:`push` and :meth:`pull`: nobody has made that server.
        PeerLostError: from these: the member that keeps the values ended.
    """

    def __init__(self, server_name: str, group: Group) -> None:
        self.server_name, self.group = server_name, group
        self._push_service = f"{server_name}/_push_service"
        self._pull_service = f"{server_name}/_pull_service"
        self._host: str | None = None
        self._server: OrderedServer | None = None
        self._lock = threading.Lock()

    @classmethod
    def at(
        cls, server_name: str, group: Group, host: str, server: OrderedServer | None = None
    ) -> OrderedServerSimple:
        """Return one of which it is known who keeps the values; and of that member its *server*."""
        accessor = cls(server_name, group)
        accessor._host, accessor._server = host, server
        return accessor

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        if self._host is None:
            return OrderedServerSimple, (self.server_name, self.group)
        return _at, (self.server_name, self.group, self._host)

    @override
    def push(self, key: Any, value: Any, version: Any, prev_version: Any) -> bool:
        if (server := self.native) is not None:
            return server.push(key, value, version, prev_version)
        args = (key, value, version, prev_version)
        return bool(self.group.registered_sync(self._push_service, args=args))

    @override
    def pull(self, key: Any, version: Any = None) -> tuple[Any, Any] | None:
        if (server := self.native) is not None:
            return server.pull(key, version)
        found = self.group.registered_sync(self._pull_service, args=(key, version))
        return None if found is None else (found[0], found[1])

    @property
    def native(self) -> OrderedServer | None:
        """The server as this member reaches it; ``None`` where it is kept here."""
        native = native_of(self.group)
        with self._lock:
            if self._server is not None or native is None:
                return self._server
            if self._host is None:
                self._host = native.get_paired(self.server_name).owner_name()
            if self._host == native.get_cur_name():
                return None  # to open a second one here would hide the values of the first
            self._server = _hosted(self.server_name, self.group, self._host, 1)
            self._server.open()
            return self._server


class OrderedServerSimpleImpl:
    """Keeps values in the member that makes it, and names an accessor *server_name*.

    Others get that by ``group.get_paired(server_name).to_here()``.

    Args:
        server_name: under which the accessor is paired.
        group: of this member and those that will use it.
        version_depth: how many versions of a key are kept: the newest.
        **_: taken for the sake of programs that say more.

    Attributes:
        accessor: what was paired.

    Raises:
        DirectoryError: the name is taken.
        ConfigError: *version_depth* is less than 1.
        ValueError: this member is not in *group*.
    """

    def __init__(self, server_name: str, group: Group, version_depth: int = 1, **_: Any) -> None:
        require_member(group)
        self.server_name, self.group, self.version_depth = server_name, group, version_depth
        me = "" if native_of(group) is None else group.get_cur_name()
        self._server = _hosted(server_name, group, me, version_depth)
        # The name is taken first: to open a second server under it would hide the first.
        group.register(f"{server_name}/_push_service", self._push_service)
        group.register(f"{server_name}/_pull_service", self._pull_service)
        self._server.open()
        self.accessor = OrderedServerSimple.at(server_name, group, me, self._server)
        try:
            group.pair(server_name, self.accessor)
        except BaseException:
            self._server.close()
            group.deregister(f"{server_name}/_push_service")
            group.deregister(f"{server_name}/_pull_service")
            raise

    def _push_service(self, key: Any, value: Any, version: Any, prev_version: Any) -> bool:
        return self._server.push(key, value, version, prev_version)

    def _pull_service(self, key: Any, version: Any = None) -> tuple[Any, Any] | None:
        return self._server.pull(key, version)


def as_native(server: Any) -> OrderedServer:
    """Return *server* as pparallel knows ordered servers.

    Raises:
        TypeError: it has no ``push`` and ``pull``.
    """
    if isinstance(server, OrderedServerSimple):
        server = server.native or server
    if isinstance(server, OrderedServer):
        return server
    if not (callable(getattr(server, "push", None)) and callable(getattr(server, "pull", None))):
        message = f"{server!r} is no ordered server: it needs push() and pull()"
        raise TypeError(message)
    return _PushPull(server)


class FromFirstStep(OrderedServer):
    """An ordered server without the parameters that a reducer publishes as it starts.

    Programs poll for the first that were reduced. Where an earlier server has published under the
    key, its chain goes on, as programs find something there anyway.

    Args:
        server: keeps what is published, and is its owner's to open and to close.
    """

    def __init__(self, server: OrderedServer) -> None:
        self._server = server
        self._is_started = False

    @override
    def open(self) -> None:
        """It is its owner's to open."""

    @override
    def close(self) -> None:
        """It is its owner's to close."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        is_first, self._is_started = not self._is_started, True
        if is_first and not self._server.versions(key):
            return True
        return self._server.push(key, value, version, prev_version)

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> tuple[Any, Hashable] | None:
        return self._server.fetch(key, version)

    @override
    def pull(
        self, key: Hashable, version: Hashable | None = None, into: Any = None
    ) -> tuple[Any, Hashable] | None:
        return self._server.pull(key, version, into)

    @override
    def wait(
        self, key: Hashable, version: Hashable | None = None, timeout: float | None = None
    ) -> tuple[Any, Hashable] | None:
        return self._server.wait(key, version, timeout)

    @override
    def versions(self, key: Hashable) -> list[Any]:
        return self._server.versions(key)

    @override
    def keys(self) -> list[Any]:
        return self._server.keys()

    @override
    def delete(self, key: Hashable) -> bool:
        return self._server.delete(key)


class _PushPull(OrderedServer):
    """An object with ``push`` and ``pull``, and nothing more."""

    def __init__(self, server: Any) -> None:
        self._server = server

    @override
    def open(self) -> None:
        """It is its owner's to open."""

    @override
    def close(self) -> None:
        """It is its owner's to close."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        # It may keep what it is given; tensors that are stepped on change under it.
        snapshot = {name: each.detach().clone() for name, each in value.items()}
        return bool(self._server.push(key, snapshot, version, prev_version))

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> tuple[Any, Hashable] | None:
        found = self._server.pull(key, version)
        return None if found is None else (found[0], found[1])

    @override
    def versions(self, key: Hashable) -> list[Any]:
        found = self.fetch(key, None)
        return [] if found is None else [found[1]]

    @override
    def wait(
        self, key: Hashable, version: Hashable | None = None, timeout: float | None = None
    ) -> tuple[Any, Hashable] | None:
        raise self._beyond("wait")

    @override
    def keys(self) -> list[Any]:
        raise self._beyond("keys")

    @override
    def delete(self, key: Hashable) -> bool:
        raise self._beyond("delete")

    def _beyond(self, what: str) -> TypeError:
        return TypeError(f"{self._server!r} offers push() and pull(), and no {what}()")


def _at(server_name: str, group: Group, host: str) -> OrderedServerSimple:
    return OrderedServerSimple.at(server_name, group, host)


def _hosted(server_name: str, group: Group, host: str, version_depth: int) -> OrderedServer:
    """Return the server of that name that *host* keeps; in this process, if the group has none."""
    if native_of(group) is None:
        memory = {"backend": "memory", "version_depth": version_depth}
        serializer = build(load(SerializerConfig, {"backend": "dill"}))
        return build(load(OrderedServerConfig, memory), serializer=serializer)
    native = needed(group)
    hosted = {"backend": "hosted", "host": host, "version_depth": version_depth}
    parts = parts_in(native, server_name)
    return build(load(OrderedServerConfig, hosted), serializer=native.serializer, **parts)
