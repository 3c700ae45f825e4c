"""The values of an ordered server, and who waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pparallel.errors import PparallelError
from pparallel.runtime.future import fail, settle


class Snapshot(NamedTuple):
    """A value and its version; the buffers are the store's own and never change.

    Attributes:
        buffers: what a serializer made, or whatever else the server keeps of the value.
        head: which of them it is, as the server that stores it knows.
    """

    buffers: Sequence[Any]
    version: Any
    head: bytes = b""


@dataclass(eq=False, slots=True)
class Waiter:
    """Somebody who waits until the newest version of a key is another.

    Attributes:
        owner: for whom; :meth:`VersionedStore.dismiss` takes it.
        future: ends with the snapshot of the newest version.
    """

    key: Hashable
    version: Hashable | None
    owner: Hashable
    future: Future[Snapshot] = field(default_factory=Future)


class VersionedStore:
    """Compares and pushes under one lock; waiters are futures, so waiting takes no thread.

    Futures are completed outside the lock, by the thread that pushed.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._lock = threading.Lock()
        self._held: dict[Hashable, dict[Any, Snapshot]] = {}  # versions from oldest to newest
        self._waiters: dict[Hashable, set[Waiter]] = {}

    def push(
        self,
        key: Hashable,
        buffers: Sequence[Any],
        version: Hashable,
        prev_version: Hashable | None,
        head: bytes = b"",
    ) -> bool:
        """Store *buffers*, which the store keeps, if *prev_version* is the newest of *key*."""
        snapshot = Snapshot(buffers, version, head)
        with self._lock:
            versions = dict(self._held.get(key, ()))
            if versions and next(reversed(versions)) != prev_version:
                return False
            versions.pop(version, None)
            versions[version] = snapshot
            while len(versions) > self._depth:
                del versions[next(iter(versions))]
            self._held[key] = versions  # at once: Ctrl-C may come between any two lines
            woken = self._take(key, lambda waiter: waiter.version != version)
        for waiter in woken:
            settle(waiter.future, snapshot)
        return True

    def would_accept(self, key: Hashable, prev_version: Hashable | None) -> bool:
        """Return whether a push after *prev_version* would be stored now."""
        with self._lock:
            newest = self._newest(key)
            return newest is None or bool(newest.version == prev_version)

    def pull(self, key: Hashable, version: Hashable | None) -> Snapshot | None:
        """Return what is held of *version*, or of the newest."""
        with self._lock:
            if version is not None:
                return self._held.get(key, {}).get(version)
            return self._newest(key)

    def pull_unless(self, key: Hashable, version: Hashable | None) -> Snapshot | None:
        """Return the newest unless it is *version*."""
        with self._lock:
            return self._newer(key, version)

    def wait(self, key: Hashable, version: Hashable | None, owner: Hashable) -> Waiter:
        """Return a waiter for the newest version that is not *version*, maybe there already."""
        waiter = Waiter(key, version, owner)
        with self._lock:
            if (snapshot := self._newer(key, version)) is None:
                self._waiters.setdefault(key, set()).add(waiter)
        if snapshot is not None:
            settle(waiter.future, snapshot)
        return waiter

    def withdraw(self, waiter: Waiter) -> None:
        """Forget *waiter*; its future never ends if it has not yet."""
        with self._lock:
            self._take(waiter.key, lambda each: each is waiter)

    def dismiss(self, owner: Hashable, error: PparallelError) -> None:
        """End all waiters of *owner* with *error*."""
        with self._lock:
            ended = [
                waiter
                for key in list(self._waiters)
                for waiter in self._take(key, lambda each: each.owner == owner)
            ]
        for waiter in ended:
            fail(waiter.future, error)

    def versions(self, key: Hashable) -> list[Any]:
        """Return the versions held of *key*, the newest last."""
        with self._lock:
            return list(self._held.get(key, ()))

    def keys(self) -> list[Any]:
        """Return the keys held."""
        with self._lock:
            return list(self._held)

    def delete(self, key: Hashable) -> bool:
        """Forget *key*; return whether it was held."""
        with self._lock:
            return self._held.pop(key, None) is not None

    def waiting(self) -> int:
        """Return how many waiters there are."""
        with self._lock:
            return sum(map(len, self._waiters.values()))

    def _newest(self, key: Hashable) -> Snapshot | None:
        versions = self._held.get(key)
        return versions[next(reversed(versions))] if versions else None

    def _newer(self, key: Hashable, version: Hashable | None) -> Snapshot | None:
        newest = self._newest(key)
        return newest if newest is not None and newest.version != version else None

    def _take(self, key: Hashable, chosen: Callable[[Waiter], bool]) -> list[Waiter]:
        """Remove and return the chosen waiters of *key*; called with the lock held."""
        waiters = self._waiters.get(key, set())
        taken = [waiter for waiter in waiters if chosen(waiter)]
        waiters.difference_update(taken)
        if not waiters:
            self._waiters.pop(key, None)
        return taken
