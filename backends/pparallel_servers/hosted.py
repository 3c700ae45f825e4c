"""Values kept by one member and served to the others."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from concurrent.futures import Future
from functools import partial

from typing_extensions import override

from pparallel.errors import (
    ClosedError,
    ConfigError,
    PeerLostError,
    ResourceExhaustedError,
    did_you_mean,
)
from pparallel.interfaces.ordered_server import Found
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.client_server import ClientOrderedServer
from pparallel.runtime.future import fail, settle
from pparallel.runtime.member import Member
from pparallel.runtime.memory import Arena
from pparallel.runtime.rpc import Reply, Request, RpcGroup, Service
from pparallel.runtime.versioned_store import Snapshot, VersionedStore, Waiter
from pparallel_servers.clients import HostClient, StoreClient
from pparallel_servers.config import HostedOrderedServerConfig
from pparallel_servers.flat import PLAIN_VALUE


class HostedOrderedServer(ClientOrderedServer):
    """Keeps the values in one member, which is asked by the others and never reads them."""

    def __init__(
        self,
        config: HostedOrderedServerConfig,
        *,
        member: Member,
        serializer: Serializer,
        group: RpcGroup,
    ) -> None:
        self._member = member
        self._serializer = serializer
        self._group = group
        self._depth = config.version_depth
        self._host = member.names[0] if config.host is None else config.host
        self._desk: _Desk | None = None

    @property
    @override
    def hosting(self) -> bool:
        return self._host == self._member.name

    @override
    def open(self) -> None:
        names = self._member.names
        if self._host not in names:
            hint = did_you_mean(self._host, names)
            message = f"{self._host!r} is no member; members: {', '.join(names)}.{hint}"
            raise ConfigError(message, path="ordered_server.host")
        if not self.hosting:
            self._client = HostClient(self._group, self._host, self._serializer)
            return
        store = VersionedStore(self._depth)
        self._desk = _Desk(store, self._group)
        self._desk.open()
        self._client = _HostsClient(store, self._serializer, self._group)

    @override
    def close(self) -> None:
        super().close()
        if self._desk is not None:
            self._desk.close()
            self._desk = None


class _HostsClient(StoreClient):
    """Goes straight to the store, but waits as the others do.

    The RPC layer knows then that the thread only waits: it lets another run user functions, and
    wakes it when the job ends.
    """

    def __init__(self, store: VersionedStore, serializer: Serializer, group: RpcGroup) -> None:
        super().__init__(store, serializer, group.memory)
        self._group = group
        self._asking = HostClient(group, group.get_cur_name(), serializer)

    @override
    def kept(self, memory: memoryview) -> None:
        self._group.publish(memory)

    @override
    def wait(self, key: Hashable, version: Hashable | None, timeout: float | None) -> Found | None:
        return self.fetch_unless(key, version) or self._asking.wait(key, version, timeout)

    @override
    def close(self) -> None:
        super().close()
        self._asking.close()


class _Desk:
    """Where the other members come to the store: its services."""

    def __init__(self, store: VersionedStore, group: RpcGroup) -> None:
        self._store = store
        self._group = group
        self._host = group.get_cur_name()
        self._left = False
        self._lock = threading.Lock()
        self._tickets: dict[tuple[str, int], Waiter] = {}
        self._services: dict[str, Service] = {
            "push": self._push,
            "begin": self._begin,
            "commit": self._commit,
            "pull": lambda asked: _reply(store.pull(*asked.body)),
            "pull_unless": lambda asked: _reply(store.pull_unless(*asked.body)),
            "wait": self._wait,
            "withdraw": self._withdraw,
            "dismiss": self._dismiss,
            "versions": lambda asked: Reply(store.versions(asked.body)),
            "keys": lambda asked: Reply(store.keys()),
            "delete": lambda asked: Reply(store.delete(asked.body)),
        }

    def open(self) -> None:
        for key, service in self._services.items():
            # To lend a block may have to make its pages.
            self._group.serve(key, self._while_here(service), heavy=key == "begin")
        self._group.when_lost(self._lost)

    def close(self) -> None:
        # The services stay until the group ends: this member has left, and they say so, while a
        # service that is missing would look like a mistake in the program.
        self._left = True
        self._group.forget(self._lost)
        with self._lock:
            senders = {sender for sender, _ in self._tickets}
        for sender in senders:
            own = ClosedError("the ordered server")
            error = own if sender == self._host else PeerLostError(self._host, "has left")
            self._store.dismiss(sender, error)

    def _while_here(self, service: Service) -> Service:
        def serve(asked: Request) -> Reply | Future[Reply]:
            if self._left:
                raise PeerLostError(self._host, "has left")
            return service(asked)

        return serve

    def _push(self, asked: Request) -> Reply:
        key, version, prev_version, head, value = asked.body
        kept = (value,) if head == PLAIN_VALUE else asked.buffers
        return Reply(self._store.push(key, kept, version, prev_version, head))

    def _arena(self) -> Arena:
        arena = self._group.arena(self._host)
        assert arena is not None
        return arena

    def _begin(self, asked: Request) -> Reply:
        """Lend a block to whoever wants to push; the answer is None where there is no room."""
        key, prev_version, nbytes = asked.body
        if not self._store.would_accept(key, prev_version):
            return Reply(False)
        try:
            return Reply(True, [self._arena().allocate(nbytes)])
        except ResourceExhaustedError:
            return Reply(None)

    def _commit(self, asked: Request) -> Reply:
        handle, key, version, prev_version, head = asked.body
        memory = self._arena().adopt(handle)
        self._group.publish(memory)
        return Reply(self._store.push(key, [memory], version, prev_version, head))

    def _wait(self, asked: Request) -> Future[Reply]:
        key, version, number = asked.body
        ticket = (asked.sender, number)
        waiter = self._store.wait(key, version, owner=asked.sender)
        reply: Future[Reply] = Future()
        with self._lock:
            self._tickets[ticket] = waiter
        waiter.future.add_done_callback(partial(self._answer, ticket, reply))
        if self._left:  # meanwhile, so that this ticket may have been overlooked
            self.close()
        return reply

    def _answer(
        self, ticket: tuple[str, int], reply: Future[Reply], found: Future[Snapshot]
    ) -> None:
        with self._lock:
            self._tickets.pop(ticket, None)
        if error := found.exception():
            fail(reply, error)
        else:
            settle(reply, _reply(found.result()))

    def _withdraw(self, asked: Request) -> Reply:
        with self._lock:
            waiter = self._tickets.get((asked.sender, asked.body))
        if waiter is not None:
            # Failing it, rather than forgetting it, also ends the reply that nobody awaits.
            self._store.withdraw(waiter)
            fail(waiter.future, ClosedError("the wait", "was given up"))
        return Reply()

    def _dismiss(self, asked: Request) -> Reply:
        self._store.dismiss(asked.sender, ClosedError("the ordered server"))
        return Reply()

    def _lost(self, member: str, reason: str) -> None:
        self._store.dismiss(member, PeerLostError(member, reason))


def _reply(snapshot: Snapshot | None) -> Reply:
    if snapshot is None:
        return Reply()
    if snapshot.head == PLAIN_VALUE:
        return Reply((snapshot.version, snapshot.head, *snapshot.buffers))
    return Reply((snapshot.version, snapshot.head, None), snapshot.buffers)
