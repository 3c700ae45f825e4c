"""Broken ordered servers."""

from __future__ import annotations

import copy
import re
import threading
import time
from collections.abc import Hashable, Iterable
from typing import Any

from typing_extensions import override

import pparallel_servers
from broken.harness import Backends, rejected_by
from pparallel.errors import PeerLostError
from pparallel.interfaces import ordered_server
from pparallel.interfaces.ordered_server import Found
from pparallel.plugin import Backend, hookimpl
from pparallel.runtime.versioned_store import Snapshot, VersionedStore
from pparallel.testing import OrderedServerSuite, patience
from pparallel_servers import HostedOrderedServerConfig, MemoryOrderedServerConfig
from pparallel_servers.clients import StoreClient
from pparallel_servers.flat import SERIALIZED
from pparallel_servers.hosted import HostedOrderedServer
from pparallel_servers.memory import MemoryOrderedServer

in_memory = Backends(MemoryOrderedServerConfig, pparallel_servers)
hosted = Backends(HostedOrderedServerConfig, pparallel_servers)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return [*in_memory.records, *hosted.records]


class Server(MemoryOrderedServer):
    """Lets a fault look into its store."""

    @property
    def store(self) -> VersionedStore:
        client = self._opened()
        assert isinstance(client, StoreClient)
        return client._store

    def held(self, key: Hashable) -> dict[Any, Snapshot]:
        return self.store._held.get(key, {})

    def newest(self, key: Hashable) -> Any:
        return next(reversed(self.held(key)), None)


# -- compare and push -------------------------------------------------------------------------


class ComparesThenPushes(Server):
    """Reads, compares, and writes: another may come between."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        if self.held(key) and self.newest(key) != prev_version:
            return False
        threading.Event().wait(0.001)  # another thread runs, as it may at any time
        return super().push(key, value, version, self.newest(key))


@rejected_by("test_threads_see_one_order", "test_members_see_one_order")
class TestComparesThenPushes(OrderedServerSuite):
    config = in_memory.config(ComparesThenPushes)


class NeverRefuses(Server):
    """Lets the last writer win."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        return super().push(key, value, version, self.newest(key))


@rejected_by("test_a_push_needs_the_newest_version", "test_threads_see_one_order")
class TestNeverRefuses(OrderedServerSuite):
    config = in_memory.config(NeverRefuses)


class ComparesWithAnyHeld(Server):
    """Accepts every version that it knows as the previous one."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        known = prev_version in self.held(key)
        return super().push(key, value, version, self.newest(key) if known else prev_version)


@rejected_by("test_a_push_needs_the_newest_version")
class TestComparesWithAnyHeld(OrderedServerSuite):
    config = in_memory.config(ComparesWithAnyHeld)


class ComparesIdentities(Server):
    """Takes equal versions for different ones."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        if self.held(key) and self.newest(key) is not prev_version:
            return False
        return super().push(key, value, version, prev_version)


@rejected_by("test_versions_are_compared_by_value")
class TestComparesIdentities(OrderedServerSuite):
    config = in_memory.config(ComparesIdentities)


class WantsNoneForANewKey(Server):
    """Refuses a first push that names a previous version."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        if not self.held(key) and prev_version is not None:
            return False
        return super().push(key, value, version, prev_version)


@rejected_by("test_a_new_key_accepts_any_previous_version")
class TestWantsNoneForANewKey(OrderedServerSuite):
    config = in_memory.config(WantsNoneForANewKey)


class NeverOverwrites(Server):
    """Refuses a version that it has."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        if version in self.held(key):
            return False
        return super().push(key, value, version, prev_version)


@rejected_by("test_the_same_version_overwrites", "test_an_older_held_version_becomes_the_newest")
class TestNeverOverwrites(OrderedServerSuite):
    config = in_memory.config(NeverOverwrites)


class OverwritesInPlace(Server):
    """Leaves an older version where it stands when it is pushed again."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        held = self.held(key)
        if version not in held or self.newest(key) != prev_version:
            return super().push(key, value, version, prev_version)
        buffers = [bytearray(each) for each in self._serializer.dumps(value)]
        held[version] = Snapshot(buffers, version)
        return True


@rejected_by("test_an_older_held_version_becomes_the_newest")
class TestOverwritesInPlace(OrderedServerSuite):
    config = in_memory.config(OverwritesInPlace)


class AcknowledgesBeforeStoring(Server):
    """Answers as soon as it knows that it will store, and does so once somebody has read."""

    @override
    def open(self) -> None:
        super().open()
        self._accepted: list[tuple[Any, ...]] = []

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        if self.held(key) and self.newest(key) != prev_version:
            return False
        self._accepted.append((key, value, version, prev_version))
        return True

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        found = super().fetch(key, version)
        while self._accepted:
            self._opened().push(*self._accepted.pop(0))
        return found


@rejected_by("test_a_push_needs_the_newest_version", "test_what_is_stored_is_a_snapshot")
class TestAcknowledgesBeforeStoring(OrderedServerSuite):
    config = in_memory.config(AcknowledgesBeforeStoring)


class TakesNoneForAVersion(Server):
    """Stores what nobody can name."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        return self._opened().push(key, value, version, prev_version)


@rejected_by("test_what_cannot_be_a_version_or_key")
class TestTakesNoneForAVersion(OrderedServerSuite):
    config = in_memory.config(TakesNoneForAVersion)


class TakesNanForAVersion(Server):
    """Stores a version that no push can name as the one before, and no pull finds."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        try:
            return super().push(key, value, version, prev_version)
        except ValueError:
            if version is None:
                raise
        return self._opened().push(key, value, version, prev_version)


@rejected_by("test_what_cannot_be_a_version_or_key")
class TestTakesNanForAVersion(OrderedServerSuite):
    config = in_memory.config(TakesNanForAVersion)


class TakesTheVersionFirst(Server):
    """Has the version accepted before it looks at the value."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        if not super().push(key, None, version, prev_version):
            return False
        return super().push(key, value, version, version)


@rejected_by("test_what_cannot_be_stored_changes_nothing")
class TestTakesTheVersionFirst(OrderedServerSuite):
    config = in_memory.config(TakesTheVersionFirst)


# -- what is held -----------------------------------------------------------------------------


class NamesByText(Server):
    """Takes what looks alike for the same key."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        return super().push(str(key), value, version, prev_version)

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        return super().fetch(str(key), version)

    @override
    def versions(self, key: Hashable) -> list[Any]:
        return super().versions(str(key))

    @override
    def delete(self, key: Hashable) -> bool:
        return super().delete(str(key))


@rejected_by("test_keys_and_versions_of_all_kinds")
class TestNamesByText(OrderedServerSuite):
    config = in_memory.config(NamesByText)


class ListsItsOwn(Server):
    """Returns the list that it keeps."""

    @override
    def open(self) -> None:
        super().open()
        self._listed: list[Any] = []

    @override
    def versions(self, key: Hashable) -> list[Any]:
        self._listed += [each for each in super().versions(key) if each not in self._listed]
        return self._listed


@rejected_by("test_what_is_listed_is_the_callers_own")
class TestListsItsOwn(OrderedServerSuite):
    config = in_memory.config(ListsItsOwn)


class KeepsOneMore(Server):
    """Counts the versions beside the newest, as machin does."""

    @override
    def open(self) -> None:
        super().open()
        self.store._depth = self._config.version_depth + 1


@rejected_by("test_holds_the_newest_versions", "test_holds_one_version_by_default")
class TestKeepsOneMore(OrderedServerSuite):
    config = in_memory.config(KeepsOneMore)


class KeepsOneLess(Server):
    """Makes room before it stores, and once more after."""

    @override
    def open(self) -> None:
        super().open()
        self.store._depth = max(1, self._config.version_depth - 1)


@rejected_by("test_holds_the_newest_versions")
class TestKeepsOneLess(OrderedServerSuite):
    config = in_memory.config(KeepsOneLess)


class FallsBackToTheNewest(Server):
    """Has something for whoever asks for a version that is gone."""

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        return super().fetch(key, version) or super().fetch(key, None)


@rejected_by("test_holds_the_newest_versions")
class TestFallsBackToTheNewest(OrderedServerSuite):
    config = in_memory.config(FallsBackToTheNewest)


class ListsTheNewestFirst(Server):
    """Lists versions as people read them."""

    @override
    def versions(self, key: Hashable) -> list[Any]:
        return super().versions(key)[::-1]


@rejected_by("test_holds_the_newest_versions")
class TestListsTheNewestFirst(OrderedServerSuite):
    config = in_memory.config(ListsTheNewestFirst)


class DeletesTheNewest(Server):
    """Forgets one version, and brings back the one before."""

    @override
    def delete(self, key: Hashable) -> bool:
        held = self.held(key)
        if len(held) < 2:
            return super().delete(key)
        held.popitem()
        return True


@rejected_by("test_keys_are_listed_and_deleted")
class TestDeletesTheNewest(OrderedServerSuite):
    config = in_memory.config(DeletesTheNewest)


class LeavesOldVersions(Server):
    """Deletes a key, and finds its versions still."""

    @override
    def open(self) -> None:
        super().open()
        self._by_version: dict[Any, Found | None] = {}

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        if version is None:
            return super().fetch(key, None)
        return self._by_version.get((key, version)) or super().fetch(key, version)

    @override
    def delete(self, key: Hashable) -> bool:
        for version in super().versions(key):
            self._by_version[key, version] = super().fetch(key, version)
        return super().delete(key)


@rejected_by("test_keys_are_listed_and_deleted")
class TestLeavesOldVersions(OrderedServerSuite):
    config = in_memory.config(LeavesOldVersions)


class ListsDeletedKeys(Server):
    """Lists every key that was ever pushed."""

    @override
    def open(self) -> None:
        super().open()
        self._pushed: dict[Hashable, None] = {}

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        pushed = super().push(key, value, version, prev_version)
        self._pushed[key] = None
        return pushed

    @override
    def keys(self) -> list[Any]:
        return list(self._pushed)


@rejected_by("test_keys_are_listed_and_deleted")
class TestListsDeletedKeys(OrderedServerSuite):
    config = in_memory.config(ListsDeletedKeys)


# -- waiting ----------------------------------------------------------------------------------


class WaitsWhereItIsClosed(Server):
    """Looks whether it is open, and begins to wait a moment later."""

    class Client(StoreClient):
        @override
        def wait(
            self, key: Hashable, version: Hashable | None, timeout: float | None
        ) -> Found | None:
            threading.Event().wait(0.05)
            return self._found(self._store.wait(key, version, self).future.result(timeout))

    @override
    def open(self) -> None:
        self._client = self.Client(self._store(), self._serializer)


@rejected_by("test_a_wait_that_begins_as_the_server_closes_ends")
class TestWaitsWhereItIsClosed(OrderedServerSuite):
    config = in_memory.config(WaitsWhereItIsClosed)


# -- values -----------------------------------------------------------------------------------


class StoresAnAlias(Server):
    """Keeps the value itself, and copies it for whoever pulls."""

    @override
    def open(self) -> None:
        super().open()
        self._values: dict[Any, Any] = {}

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        pushed = super().push(key, value, version, prev_version)
        if pushed:
            self._values[key, version] = value
        return pushed

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        found = super().fetch(key, version)
        return found and (copy.deepcopy(self._values[key, found[1]]), found[1])


@rejected_by("test_what_is_stored_is_a_snapshot")
class TestStoresAnAlias(OrderedServerSuite):
    config = in_memory.config(StoresAnAlias)


class ReturnsAnAlias(Server):
    """Reads a value once, for all who pull it."""

    @override
    def open(self) -> None:
        super().open()
        self._read: dict[Any, Found] = {}

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        found = super().fetch(key, version)
        return found and self._read.setdefault((key, found[1]), found)


@rejected_by("test_what_is_pulled_is_the_callers_own")
class TestReturnsAnAlias(OrderedServerSuite):
    config = in_memory.config(ReturnsAnAlias)


class ReadsOverItsOwnMemory(Server):
    """Gives its own buffers to the serializer, which builds the value over them."""

    class Client(StoreClient):
        @override
        def _found(self, snapshot: Snapshot | None) -> Found | None:
            if snapshot is None or snapshot.head != SERIALIZED:
                return super()._found(snapshot)
            return self._flattener.serializer.loads(snapshot.buffers), snapshot.version

    @override
    def open(self) -> None:
        self._client = self.Client(self._store(), self._serializer)


@rejected_by("test_what_is_pulled_is_the_callers_own")
class TestReadsOverItsOwnMemory(OrderedServerSuite):
    config = in_memory.config(ReadsOverItsOwnMemory)


class CopiesWhatIsSmall(Server):
    """Spares itself the copy of a value that is large."""

    @override
    def open(self) -> None:
        super().open()
        self._large: dict[Any, Any] = {}

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        pushed = super().push(key, value, version, prev_version)
        is_large = isinstance(value, dict) and sum(each.nbytes for each in value.values()) > 1 << 20
        if pushed and is_large:
            self._large[key, version] = value
        return pushed

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        found = super().fetch(key, version)
        return found and (self._large.get((key, found[1]), found[0]), found[1])


@rejected_by("test_large_values")
class TestCopiesWhatIsSmall(OrderedServerSuite):
    config = in_memory.config(CopiesWhatIsSmall)


class WritesOverWhatItHolds(Server):
    """Keeps the memory of a key, and writes the next value to it while others read."""

    @override
    def open(self) -> None:
        super().open()
        self._memory: dict[Hashable, dict[str, Any]] = {}

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        pushed = super().push(key, value, version, prev_version)
        held = self._memory.setdefault(key, copy.deepcopy(value))
        for name, tensor in value.items():
            held[name].copy_(tensor)
            threading.Event().wait(0.005)  # another thread runs, as it may at any time
        return pushed

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        found = super().fetch(key, version)
        return found and (copy.deepcopy(self._memory[key]), found[1])


@rejected_by("test_no_thread_sees_half_a_push")
class TestWritesOverWhatItHolds(OrderedServerSuite):
    config = in_memory.config(WritesOverWhatItHolds)


class IgnoresInto(Server):
    """Returns the value, wherever it was to go."""

    @override
    def pull(
        self, key: Hashable, version: Hashable | None = None, into: Any = None
    ) -> Found | None:
        return super().pull(key, version)


@rejected_by("test_pulls_into", "test_into_must_fit")
class TestIgnoresInto(OrderedServerSuite):
    config = in_memory.config(IgnoresInto)


class CopiesUntilItDoesNotFit(Server):
    """Copies entry by entry, each when it has been looked at."""

    @override
    def pull(
        self, key: Hashable, version: Hashable | None = None, into: Any = None
    ) -> Found | None:
        found = super().pull(key, version)
        if found is None or into is None:
            return found
        for source, target in ordered_server._pairs(found[0], into, "value"):
            target[...] = source
        return into, found[1]


@rejected_by("test_into_must_fit")
class TestCopiesUntilItDoesNotFit(OrderedServerSuite):
    config = in_memory.config(CopiesUntilItDoesNotFit)


class FillsSharedMemory(Server):
    """Compares shapes and dtypes alone: what is expanded is refused by torch, in the midst."""

    @override
    def pull(
        self, key: Hashable, version: Hashable | None = None, into: Any = None
    ) -> Found | None:
        found = super().pull(key, version)
        if found is None or into is None:
            return found
        try:
            pairs = list(ordered_server._pairs(found[0], into, "value"))
        except ValueError as error:
            if not re.search("share memory|meta", str(error)):
                raise
            pairs = [(value, into[at]) for at, value in _items(found[0])]
        for source, target in pairs:
            target[...] = source
        return into, found[1]


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value)


@rejected_by("test_into_must_have_memory_of_its_own")
class TestFillsSharedMemory(OrderedServerSuite):
    config = in_memory.config(FillsSharedMemory)


# -- waiting ----------------------------------------------------------------------------------


class WakesOne(Server):
    """Notifies one waiter where it should notify all."""

    @override
    def open(self) -> None:
        super().open()
        self._changed = threading.Condition()

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        with self._changed:
            pushed = super().push(key, value, version, prev_version)
            self._changed.notify()
        return pushed

    @override
    def wait(
        self, key: Hashable, version: Hashable | None = None, timeout: float | None = None
    ) -> Found | None:
        with self._changed:
            while (found := self._opened().fetch_unless(key, version)) is None:
                if not self._changed.wait(timeout):
                    return None
        return found


@rejected_by("test_one_push_wakes_every_waiter")
class TestWakesOne(OrderedServerSuite):
    config = in_memory.config(WakesOne)


class WakesItsOwnMember(WakesOne):
    """Wakes all who wait in the member that pushes."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        pushed = super().push(key, value, version, prev_version)
        with self._changed:
            self._changed.notify_all()
        return pushed


@rejected_by("test_one_push_wakes_the_waiters_of_all_members")
class TestWakesItsOwnMember(OrderedServerSuite):
    config = in_memory.config(WakesItsOwnMember)


class WakesForAnything(Server):
    """Returns from a wait whatever was pushed."""

    @override
    def wait(
        self, key: Hashable, version: Hashable | None = None, timeout: float | None = None
    ) -> Found | None:
        if timeout == 0 or not self.held(key):
            return super().wait(key, version, timeout)
        end = time.monotonic() + (patience.PATIENCE if timeout is None else timeout)
        before = self.held(key)[self.newest(key)]
        while self.held(key) and self.held(key)[self.newest(key)] is before:
            if self.newest(key) != version:
                break
            if time.monotonic() > end:
                return None
            threading.Event().wait(0.001)
        return super().fetch(key, None)


@rejected_by("test_a_waiter_sees_no_other_key_and_no_overwrite")
class TestWakesForAnything(OrderedServerSuite):
    config = in_memory.config(WakesForAnything)


class WaitReturnsWhatWasThere(Server):
    """Reads the value before it waits, and the version after."""

    @override
    def wait(
        self, key: Hashable, version: Hashable | None = None, timeout: float | None = None
    ) -> Found | None:
        before = self.fetch(key, None)
        found = super().wait(key, version, timeout)
        return found and before and (before[0], found[1])


@rejected_by("test_one_push_wakes_every_waiter", "test_a_waiter_sees_no_other_key_and_no_overwrite")
class TestWaitReturnsWhatWasThere(OrderedServerSuite):
    config = in_memory.config(WaitReturnsWhatWasThere)


class CloseForgetsWaiters(Server):
    """Lets go of its store, and of nothing else."""

    @override
    def close(self) -> None:
        self._client = None


@rejected_by("test_nobody_waits_after_the_end")
class TestCloseForgetsWaiters(OrderedServerSuite):
    patience = 0.5
    config = in_memory.config(CloseForgetsWaiters)


class WorksAfterClose(Server):
    """Wakes those who wait, and goes on serving."""

    @override
    def close(self) -> None:
        if self._client is not None:
            self._client.close()


@rejected_by("test_nobody_waits_after_the_end")
class TestWorksAfterClose(OrderedServerSuite):
    config = in_memory.config(WorksAfterClose)


# -- members ----------------------------------------------------------------------------------


class SharesNothing(Server):
    """Keeps a store for each member."""

    @override
    def _store(self) -> VersionedStore:
        return VersionedStore(self._config.version_depth)


@rejected_by("test_members_share", "test_members_see_one_order")
class TestSharesNothing(OrderedServerSuite):
    config = in_memory.config(SharesNothing)


class RemembersWhatItPulled(HostedOrderedServer):
    """Asks the host only now and then, or after its own pushes."""

    @override
    def open(self) -> None:
        super().open()
        self._pulled: dict[Any, tuple[float, Found | None]] = {}

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        then, found = self._pulled.get((key, version), (0.0, None))
        if time.monotonic() - then > 0.005:
            found = super().fetch(key, version)
            self._pulled[key, version] = (time.monotonic(), found)
        return copy.deepcopy(found)

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        self._pulled.clear()
        return super().push(key, value, version, prev_version)

    @override
    def delete(self, key: Hashable) -> bool:
        self._pulled.clear()
        return super().delete(key)


@rejected_by("test_a_push_is_seen_by_all_members_at_once")
class TestRemembersWhatItPulled(OrderedServerSuite):
    config = hosted.config(RemembersWhatItPulled)


class ComparesInTheClient(HostedOrderedServer):
    """Asks for the newest version, compares, and then pushes whatever is there by now."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        held = self.versions(key)
        if held and held[-1] != prev_version:
            return False
        threading.Event().wait(0.0005)  # another member runs, as it may at any time
        while not super().push(key, value, version, (self.versions(key) or [None])[-1]):
            continue
        return True


@rejected_by("test_members_see_one_order")
class TestComparesInTheClient(OrderedServerSuite):
    config = hosted.config(ComparesInTheClient)


class AsksTwice(HostedOrderedServer):
    """Asks for the newest version, and then for the newest value."""

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        held = self.versions(key)
        threading.Event().wait(0.01)  # another member runs, as it may at any time
        found = super().fetch(key, version)
        return found and (found[0], held[-1] if held else found[1])


@rejected_by("test_no_member_sees_half_a_push")
class TestAsksTwice(OrderedServerSuite):
    config = hosted.config(AsksTwice)


class SeemsEmptyWithoutItsHost(HostedOrderedServer):
    """Takes a host that is gone for one that has nothing."""

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        try:
            return super().fetch(key, version)
        except PeerLostError:
            return None


@rejected_by("test_after_a_member_left")
class TestSeemsEmptyWithoutItsHost(OrderedServerSuite):
    config = hosted.config(SeemsEmptyWithoutItsHost, host="member-2")


class ListsNothingWithoutItsHost(HostedOrderedServer):
    """Lists what it can reach."""

    @override
    def keys(self) -> list[Any]:
        try:
            return super().keys()
        except PeerLostError:
            return []


@rejected_by("test_after_a_member_left")
class TestListsNothingWithoutItsHost(OrderedServerSuite):
    config = hosted.config(ListsNothingWithoutItsHost, host="member-2")
