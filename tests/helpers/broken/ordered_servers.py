"""Broken ordered servers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Hashable, Iterable
from typing import Any

from typing_extensions import override

import pparallel_servers
from broken.harness import Backends, rejected_by
from pparallel.errors import PeerLostError
from pparallel.interfaces.ordered_server import Found
from pparallel.plugin import Backend, hookimpl
from pparallel.testing import OrderedServerSuite
from pparallel_servers import HostedOrderedServerConfig, MemoryOrderedServerConfig
from pparallel_servers.hosted import HostedOrderedServer
from pparallel_servers.memory import MemoryOrderedServer

in_memory = Backends(MemoryOrderedServerConfig, pparallel_servers)
hosted = Backends(HostedOrderedServerConfig, pparallel_servers)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return [*in_memory.records, *hosted.records]


class NeverRefuses(MemoryOrderedServer):
    """Lets the last writer win."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        held = self.versions(key)
        return super().push(key, value, version, held[-1] if held else None)


@rejected_by("test_a_push_needs_the_newest_version", "test_threads_see_one_order")
class TestNeverRefuses(OrderedServerSuite):
    config = in_memory.config(NeverRefuses)


class StoresAnAlias(MemoryOrderedServer):
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


class WakesOne(MemoryOrderedServer):
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
