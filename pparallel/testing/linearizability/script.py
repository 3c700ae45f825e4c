"""What a client does: random operations, which make sense after what it saw."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any, NamedTuple

from pparallel.testing.linearizability.plan import Part
from pparallel.testing.linearizability.values import Large

WEIGHTS = {
    "push": 40,
    "pull": 22,
    "pull a version": 8,
    "wait": 8,
    "wait a while": 8,
    "versions": 7,
    "delete": 7,
}
SHORT = (0.0005, 0.002, 0.006)  #: seconds that a wait takes at most


class Step(NamedTuple):
    """A call of an ordered server: what :class:`Operation` says of it before it returns."""

    key: Hashable
    name: str
    arguments: tuple[Any, ...]


class Script:
    """Draws one step after the other, by a seed of its own."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._random = random.Random(f"{part.seed} {part.name}")
        self._seen: dict[Hashable, list[Any]] = {key: [] for key in part.keys}
        self._pushes = 0

    def next(self) -> Step:
        """Return what to do next."""
        key = self._random.choice(self._part.keys)
        (what,) = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        newest = self._seen[key][-1] if self._seen[key] else None
        if what == "push":
            return Step(key, "push", self._push(key, newest))
        if what == "pull":
            return Step(key, "pull", (None,))
        if what == "pull a version":
            return Step(key, "pull", (self._any(key),))
        if what == "wait":
            return Step(key, "wait", (newest, 0))
        if what == "wait a while":
            return Step(key, "wait", (newest, self._random.choice(SHORT)))
        return Step(key, what, ())

    def saw(self, step: Step, result: Any) -> None:
        """Learn from what a step returned."""
        key, name, arguments = step
        if name == "push" and result:
            self._is_newest(key, arguments[1])
        elif name in ("pull", "wait") and result is not None:
            self._is_newest(key, result[1])
        elif name == "versions":
            self._seen[key] = list(result)
        elif name == "delete":
            self._seen[key] = []

    def thinks(self) -> float:
        """Return how many seconds pass before the next step."""
        return self._random.uniform(0, 0.0005) if self._random.random() < 0.3 else 0.0

    def _is_newest(self, key: Hashable, version: Any) -> None:
        seen = self._seen[key]
        if version in seen:
            seen.remove(version)
        seen.append(version)
        del seen[:-4]

    def _push(self, key: Hashable, newest: Any) -> tuple[Any, Any, Any]:
        self._pushes += 1
        value, chance = self._value(), self._random.random()
        if newest is not None and chance < 0.15:  # over the newest
            return value, newest, newest
        if newest is not None and chance < 0.3:  # one that may still be held, maybe the newest
            return value, self._any(key), newest
        if chance < 0.42:  # another may have come first; one that knows nothing is refused
            return value, self._version(), self._any(key)
        return value, self._version(), newest

    def _any(self, key: Hashable) -> Any:
        return self._random.choice(self._seen[key] or [None])

    def _version(self) -> Hashable:
        name, number = self._part.name, self._pushes
        versions = ((name, number), f"{name}.{number}", 1000 * self._part.number + number)
        return versions[number % len(versions)]

    def _value(self) -> Hashable:
        name, number = self._part.name, self._pushes
        unique = 1000 * self._part.number + number
        if self._part.nbytes:
            return Large(unique, self._part.nbytes)
        return (unique, f"{name} {number}", f"{name} {number}".encode())[number % 3]
