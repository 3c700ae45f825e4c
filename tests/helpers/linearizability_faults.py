"""Faults planted in ordered servers: they show only where clients meet at the same values."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from typing_extensions import override

from pparallel.interfaces.ordered_server import Found, OrderedServer


class Around(OrderedServer):
    """A server around another, which it asks for everything; it opens and closes nothing."""

    def __init__(self, inner: OrderedServer) -> None:
        self.inner = inner

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        return self.inner.push(key, value, version, prev_version)

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        return self.inner.fetch(key, version)

    @override
    def wait(
        self, key: Hashable, version: Hashable | None = None, timeout: float | None = None
    ) -> Found | None:
        return self.inner.wait(key, version, timeout)

    @override
    def versions(self, key: Hashable) -> list[Any]:
        return self.inner.versions(key)

    @override
    def keys(self) -> list[Any]:
        return self.inner.keys()

    @override
    def delete(self, key: Hashable) -> bool:
        return self.inner.delete(key)

    @override
    def open(self) -> None:
        """Leave that to who opened the other."""

    @override
    def close(self) -> None:
        """Leave that to who closes the other."""


class BelievesItsCopy(Around):
    """Keeps what it pulled until it changes the key itself."""

    def __init__(self, inner: OrderedServer) -> None:
        super().__init__(inner)
        self._copies: dict[Hashable, Found | None] = {}

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        self._copies.pop(key, None)
        return super().push(key, value, version, prev_version)

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        if version is not None:
            return super().fetch(key, version)
        if key not in self._copies:
            self._copies[key] = super().fetch(key, None)
        return self._copies[key]

    @override
    def delete(self, key: Hashable) -> bool:
        self._copies.pop(key, None)
        return super().delete(key)


class ComparesThenPushes(Around):
    """Compares by itself, and then pushes over whatever is there by then."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        held = self.inner.versions(key)
        if held and held[-1] != prev_version:
            return False
        while not self.inner.push(key, value, version, (self.inner.versions(key) or [None])[-1]):
            continue
        return True
