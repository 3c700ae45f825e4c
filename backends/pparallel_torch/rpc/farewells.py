"""Takes no member for gone before its last replies are here."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple


class _Leaving(NamedTuple):
    replies: int
    gone: Callable[[], None]


class Farewells:
    """Counts the replies between this member and each other.

    A good-bye travels on another connection than the replies before it, and torch handles both in
    any order. So whoever leaves says how many replies it has given.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._leaving: dict[str, _Leaving] = {}

    def met(self, name: str) -> None:
        """Remember that member *name* asks for replies."""
        with self._lock:
            self._given[name] += 0

    def gave(self, name: str) -> None:
        """Count a reply to member *name*."""
        with self._lock:
            self._given[name] += 1

    def given(self) -> dict[str, int]:
        """Return how many replies this member has given, to each that asks for them."""
        with self._lock:
            return dict(self._given)

    def received(self, name: str) -> None:
        """Count a reply of member *name*, once whoever waited for it has it."""
        with self._lock:
            self._received[name] += 1
            leaving = self._leaving.get(name)
            if leaving is None or self._received[name] < leaving.replies:
                return
            del self._leaving[name]
        leaving.gone()

    def left(self, name: str, replies: int, gone: Callable[[], None]) -> None:
        """Call *gone* when as many replies of member *name* have come as it says."""
        with self._lock:
            if self._received[name] < replies:
                self._leaving[name] = _Leaving(replies, gone)
                return
        gone()
