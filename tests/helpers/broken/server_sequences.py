"""Ordered servers that work step by step, and fail after some sequence of operations."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, ClassVar

from typing_extensions import override

import pparallel_servers
from broken.harness import Backends, rejected_by
from broken.ordered_servers import Server
from pparallel.interfaces.ordered_server import Found
from pparallel.plugin import Backend, hookimpl
from pparallel.runtime.versioned_store import Snapshot
from pparallel.testing import OrderedServerSuite
from pparallel_servers import MemoryOrderedServerConfig

in_memory = Backends(MemoryOrderedServerConfig, pparallel_servers)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return in_memory.records


class ManySequences(OrderedServerSuite):
    """Tries more: what one version of Hypothesis finds soon, another may find late."""

    sequences: ClassVar[int] = 150
    limit: ClassVar[float] = 200.0


class Pushing(Server):
    """Lets a fault change what a push does."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        before = dict(self.held(key))
        pushed = super().push(key, value, version, prev_version)
        if pushed:
            self.pushed(key, version, before)
        return pushed

    def pushed(self, key: Hashable, version: Hashable, before: dict[Any, Snapshot]) -> None:
        """Do what is wrong, after a push of *version* to what held *before*."""


# -- what is held -----------------------------------------------------------------------------


class KeepsOneMoreOnceOverwritten(Pushing):
    """Counts an overwrite as a version that has gone."""

    @override
    def pushed(self, key: Hashable, version: Hashable, before: dict[Any, Snapshot]) -> None:
        if version in before:
            self.store._depth = self._config.version_depth + 1


@rejected_by("test_any_sequence_of_operations")
class TestKeepsOneMoreOnceOverwritten(ManySequences):
    config = in_memory.config(KeepsOneMoreOnceOverwritten)


class EvictsByAge(Pushing):
    """Drops what was pushed first, though it was pushed again."""

    @override
    def open(self) -> None:
        super().open()
        self._ages: dict[Any, list[Any]] = {}

    @override
    def pushed(self, key: Hashable, version: Hashable, before: dict[Any, Snapshot]) -> None:
        ages = [each for each in self._ages.get(key, []) if each in before]
        if version not in ages:
            ages.append(version)
        if before and len(before) == self.store._depth and version not in before:
            held = self.held(key)
            victim, oldest = ages.pop(0), next(iter(before))
            if victim != oldest:
                rest = {each: snapshot for each, snapshot in held.items() if each != victim}
                self.store._held[key] = {oldest: before[oldest], **rest}
        self._ages[key] = ages


@rejected_by("test_any_sequence_of_operations")
class TestEvictsByAge(ManySequences):
    config = in_memory.config(EvictsByAge)


class RevivesOldVersions(Server):
    """Lists what a key had before it was deleted, once it is pushed again."""

    @override
    def open(self) -> None:
        super().open()
        self._buried: dict[Hashable, dict[Any, Snapshot]] = {}

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        pushed = super().push(key, value, version, prev_version)
        buried = self._buried.pop(key, None)
        if buried:
            self.store._held[key] = {**buried, **self.held(key)}
        return pushed

    @override
    def delete(self, key: Hashable) -> bool:
        self._buried[key] = dict(self.held(key))
        return super().delete(key)


@rejected_by("test_any_sequence_of_operations")
class TestRevivesOldVersions(ManySequences):
    config = in_memory.config(RevivesOldVersions)


class ForgetsOtherKeys(Pushing):
    """Has room for few keys, and drops the one that was pushed first."""

    @override
    def pushed(self, key: Hashable, version: Hashable, before: dict[Any, Snapshot]) -> None:
        if len(self.store._held) > 2:
            self.store._held.pop(next(iter(self.store._held)))


@rejected_by("test_any_sequence_of_operations")
class TestForgetsOtherKeys(ManySequences):
    config = in_memory.config(ForgetsOtherKeys)


# -- compare and push -------------------------------------------------------------------------


class TakesTheVersionBeforeAnOverwrite(Server):
    """Compares with the version that was the newest before the last overwrite, too."""

    @override
    def open(self) -> None:
        super().open()
        self._before: dict[Hashable, Any] = {}

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        newest = self.newest(key)
        if newest is not None and self._before.get(key) == prev_version is not None:
            prev_version = newest
        pushed = super().push(key, value, version, prev_version)
        if pushed:
            self._before[key] = [*self.held(key)][-2:][0] if version == newest else None
        return pushed


@rejected_by("test_any_sequence_of_operations")
class TestTakesTheVersionBeforeAnOverwrite(ManySequences):
    config = in_memory.config(TakesTheVersionBeforeAnOverwrite)


class LocksAfterARefusal(Server):
    """Refuses what comes after two refused pushes in a row: somebody seems to be at work."""

    _refused = 0

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        if self._refused == 2:
            self._refused = 0
            return False
        pushed = super().push(key, value, version, prev_version)
        self._refused = 0 if pushed else self._refused + 1
        return pushed


@rejected_by("test_any_sequence_of_operations")
class TestLocksAfterARefusal(ManySequences):
    config = in_memory.config(LocksAfterARefusal)


# -- values and waiting -----------------------------------------------------------------------


class CachesByVersion(Server):
    """Reads the value of a version that was asked for by name once."""

    @override
    def open(self) -> None:
        super().open()
        self._read: dict[Any, Snapshot] = {}

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        held = self.held(key)
        if version is not None and version in held:
            snapshot = self._read.setdefault((key, version), held[version])
            return self._opened()._found(snapshot)  # type: ignore[attr-defined, no-any-return]
        return super().fetch(key, version)


@rejected_by("test_any_sequence_of_operations")
class TestCachesByVersion(ManySequences):
    config = in_memory.config(CachesByVersion)


class WakesWithTheOldValue(Server):
    """Returns the value of a version as a waiter first saw it."""

    @override
    def open(self) -> None:
        super().open()
        self._seen: dict[Any, Any] = {}

    @override
    def wait(
        self, key: Hashable, version: Hashable | None = None, timeout: float | None = None
    ) -> Found | None:
        found = super().wait(key, version, timeout)
        if found is None:
            return None
        if not isinstance(found[0], dict) or "number" not in found[0]:
            return found
        seen = self._seen.setdefault((key, found[1]), {**found[0]})
        return {**seen, "parts": [*seen["parts"]]}, found[1]


@rejected_by("test_any_sequence_of_operations")
class TestWakesWithTheOldValue(ManySequences):
    config = in_memory.config(WakesWithTheOldValue)


class WakesForTheSameVersion(Server):
    """Takes a version for new that was deleted and pushed again."""

    @override
    def open(self) -> None:
        super().open()
        self._deleted: set[Hashable] = set()

    @override
    def wait(
        self, key: Hashable, version: Hashable | None = None, timeout: float | None = None
    ) -> Found | None:
        if timeout == 0 and key in self._deleted:
            return super().wait(key, None, 0)
        return super().wait(key, version, timeout)

    @override
    def delete(self, key: Hashable) -> bool:
        self._deleted.add(key)
        return super().delete(key)


@rejected_by("test_any_sequence_of_operations")
class TestWakesForTheSameVersion(ManySequences):
    config = in_memory.config(WakesForTheSameVersion)


class FillsAsTheNewest(Server):
    """Says of an older version that it was copied as the newest."""

    @override
    def pull(
        self, key: Hashable, version: Hashable | None = None, into: Any = None
    ) -> Found | None:
        found = super().pull(key, version, into)
        return found and (found[0], found[1] if into is None else self.newest(key))


@rejected_by("test_any_sequence_of_operations")
class TestFillsAsTheNewest(ManySequences):
    config = in_memory.config(FillsAsTheNewest)


class LendsWhatWasOverwritten(Pushing):
    """Keeps the value itself where one was before."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        overwrites = version in self.held(key)
        pushed = super().push(key, value, version, prev_version)
        self._lent: dict[Any, Any] = getattr(self, "_lent", {})
        if pushed and overwrites and isinstance(value, dict):
            self._lent[key, version] = value
        elif pushed:
            self._lent.pop((key, version), None)
        return pushed

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        found = super().fetch(key, version)
        lent = getattr(self, "_lent", {})
        return (lent[key, found[1]], found[1]) if found and (key, found[1]) in lent else found


@rejected_by("test_any_sequence_of_operations")
class TestLendsWhatWasOverwritten(ManySequences):
    config = in_memory.config(LendsWhatWasOverwritten)
