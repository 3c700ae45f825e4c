"""The two ways to the values: straight to a store in this process, or by asking its host."""

from __future__ import annotations

import concurrent.futures
import itertools
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from typing_extensions import Buffer, override

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError
from pparallel.interfaces.ordered_server import Found, copy_into
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import stopping
from pparallel.runtime.client_server import ServerClient
from pparallel.runtime.future import fail
from pparallel.runtime.memory import Arena, copy, writable
from pparallel.runtime.rpc import Reply, RpcGroup
from pparallel.runtime.versioned_store import Snapshot, VersionedStore
from pparallel_servers.flat import PLAIN_VALUE, SERIALIZED, Flat, Flattener, is_plain

Memory = Callable[[int], memoryview]  #: returns memory of so many bytes


def _memory(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))


class StoreClient(ServerClient):
    """Uses a store in this process, and copies what goes in and out."""

    def __init__(
        self, store: VersionedStore, serializer: Serializer, memory: Memory = _memory
    ) -> None:
        self._store = store
        self._flattener = Flattener(serializer)
        self._memory = memory
        self._is_closed = False

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        if is_plain(value):
            return self._store.push(key, (value,), version, prev_version, PLAIN_VALUE)
        form = self._flattener.dumps(value)
        if not isinstance(form, Flat):
            buffers = [bytearray(each) for each in form]
            return self._store.push(key, buffers, version, prev_version)
        if not self._store.would_accept(key, prev_version):
            return False
        memory = self._memory(form.nbytes)
        form.write(memory)
        self.kept(memory)
        return self._store.push(key, [memory], version, prev_version, form.head)

    def kept(self, memory: memoryview) -> None:
        """Take note that *memory* is written."""

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        return self._found(self._store.pull(key, version))

    @override
    def pull_into(self, key: Hashable, version: Hashable | None, into: Any) -> Found | None:
        snapshot = self._store.pull(key, version)
        if snapshot is None:
            return None
        if snapshot.head in (SERIALIZED, PLAIN_VALUE):
            return filled(self._found(snapshot), into)
        (memory,) = snapshot.buffers
        self._flattener.fill(snapshot.head, memoryview(memory), into)
        return into, snapshot.version

    @override
    def fetch_unless(self, key: Hashable, version: Hashable | None) -> Found | None:
        return self._found(self._store.pull_unless(key, version))

    @override
    def wait(self, key: Hashable, version: Hashable | None, timeout: float | None) -> Found | None:
        waiter = self._store.wait(key, version, owner=self)
        if self._is_closed:  # by another thread; it was too early to dismiss this waiter
            self.close()
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
        self._is_closed = True
        self._store.dismiss(self, ClosedError("the ordered server"))

    def _found(self, snapshot: Snapshot | None) -> Found | None:
        if snapshot is None:
            return None
        if snapshot.head == PLAIN_VALUE:
            return snapshot.buffers[0], snapshot.version
        if snapshot.head:
            (memory,) = snapshot.buffers
            own = _copy(memoryview(memory), self._memory)
            return self._flattener.loads(snapshot.head, own), snapshot.version
        copies: list[Buffer] = [bytearray(each) for each in snapshot.buffers]
        return self._flattener.serializer.loads(copies), snapshot.version


class HostClient(ServerClient):
    """Asks the member that keeps the values.

    Where this member sees the host's memory a large value is written to a block there, between
    two requests, and read from there; elsewhere it travels with the request and the answer.
    """

    def __init__(self, group: RpcGroup, host: str, serializer: Serializer) -> None:
        self._group = group
        self._host = host
        self._flattener = Flattener(serializer)
        self._tickets = itertools.count()
        self._waiting: set[Future[Reply]] = set()
        self._is_closed = False

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        if is_plain(value):
            body = (key, version, prev_version, PLAIN_VALUE, value)
            return bool(self._ask("push", body).body)
        arena = self._group.arena(self._host)
        if arena is None:
            return self._push(key, self._flattener.serializer.dumps(value), version, prev_version)
        form = self._flattener.dumps(value)
        if not isinstance(form, Flat):
            return self._push(key, form, version, prev_version)
        done = self._push_flat(arena, key, form, (version, prev_version))
        if done is None:
            form = self._flattener.serializer.dumps(value)
            return self._push(key, form, version, prev_version)
        return done

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        return self._found(self._ask("pull", (key, version)))

    @override
    def pull_into(self, key: Hashable, version: Hashable | None, into: Any) -> Found | None:
        reply = self._ask("pull", (key, version))
        if reply.body is None or reply.body[1] in (SERIALIZED, PLAIN_VALUE):
            return filled(self._found(reply), into)
        found, head, _ = reply.body
        (buffer,) = reply.buffers
        memory = memoryview(buffer)
        self._flattener.fill(head, writable(memory) if memory.readonly else memory, into)
        return into, found

    @override
    def fetch_unless(self, key: Hashable, version: Hashable | None) -> Found | None:
        return self._found(self._ask("pull_unless", (key, version)))

    @override
    def wait(self, key: Hashable, version: Hashable | None, timeout: float | None) -> Found | None:
        ticket = next(self._tickets)
        body, asked = (key, version, ticket), None
        try:
            asked = self._group.ask_async(self._host, "wait", body, timeout=timeout)
            self._waiting.add(asked)
            if self._is_closed:  # by another thread, which has not seen this one
                fail(asked, ClosedError("the ordered server"))
            return self._found(asked.result())
        except CallTimeoutError:
            self._withdraw(ticket)
            return None
        except (KeyboardInterrupt, ClosedError):
            self._withdraw(ticket)
            raise
        except PeerLostError:
            if self._is_closed:  # and so is the host, or it is this member
                raise ClosedError("the ordered server") from None
            raise
        finally:
            self._waiting.discard(asked)

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
        self._is_closed = True
        for each in self._waiting.copy():  # whenever the host comes to hear of it
            fail(each, ClosedError("the ordered server"))
        self._tell("dismiss", None)

    def _ask(self, key: str, body: Any = None, buffers: Sequence[Buffer] = ()) -> Reply:
        return self._group.ask(self._host, key, body, buffers)

    def _withdraw(self, ticket: int) -> None:
        self._tell("withdraw", ticket)

    def _tell(self, key: str, body: Any) -> None:
        """Ask without waiting: whether the host heard it makes no difference to the caller."""
        with suppress(ClosedError, PeerLostError):
            self._group.ask_async(self._host, key, body)

    def _push(self, key: Hashable, buffers: Sequence[Buffer], *versions: Hashable | None) -> bool:
        body = (key, *versions, SERIALIZED, None)
        return bool(self._ask("push", body, buffers).body)

    def _push_flat(
        self, arena: Arena, key: Hashable, form: Flat, versions: tuple[Hashable, Hashable | None]
    ) -> bool | None:
        """Push through a block that the host lends; return None where it has none."""
        begun = self._ask("begin", (key, versions[1], form.nbytes))
        if not begun.body:
            return begun.body  # type: ignore[no-any-return] # None: no room; False: it would be refused
        memory = memoryview(begun.buffers[0])
        form.write(memory)
        handle = arena.lend(memory)
        try:
            return bool(self._ask("commit", (handle, key, *versions, form.head)).body)
        finally:
            arena.drop(handle)  # unless the host has it

    def _found(self, reply: Reply) -> Found | None:
        if reply.body is None:
            return None
        version, head, value = reply.body
        if head == PLAIN_VALUE:
            return value, version
        if head == SERIALIZED:
            return self._flattener.serializer.loads(reply.buffers), version
        (buffer,) = reply.buffers
        memory = memoryview(buffer)
        if memory.readonly:  # it is the host's, which this member reads
            memory = _copy(memory, self._group.memory)
        return self._flattener.loads(head, memory), version


def filled(found: Found | None, into: Any) -> Found | None:
    """Copy what was *found* into *into*, and return that instead."""
    if found is None:
        return None
    copy_into(found[0], into)
    return into, found[1]


def _copy(memory: memoryview, of_size: Memory) -> memoryview:
    own = of_size(len(memory))
    copy(own, memory)
    return own


def _stop(future: Future[Snapshot]) -> None:
    fail(future, ClosedError("the ordered server", "is closing: the job ends", consequence=True))
