"""What a client of a store does in a turn, whatever the store."""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from benchmarks.crews import Part
from benchmarks.harness import Samples
from benchmarks.harness.timing import spread

if TYPE_CHECKING:
    import torch

TENSORS = 60  #: of which a state consists
BYTES = 100  #: of a small value


class Store(NamedTuple):
    """A place for one value, which is replaced by every push.

    Attributes:
        push: stores a value.
        pull: returns it, in new memory; or else in the memory that is given, if it is not None.
    """

    push: Callable[[Any], None]
    pull: Callable[[Any], Any]


class States(Part):
    """Pushes a state and pulls it, and does so again."""

    def __init__(self, megabytes: int, times: int, into: bool, store: Store) -> None:
        import torch

        self.tasks = times
        self._store = store
        size = (megabytes << 20) // 4 // TENSORS
        self._base = torch.arange(size, dtype=torch.float32)
        names = [f"layer{each}.weight" for each in range(TENSORS)]
        self._state = {name: torch.empty(size) for name in names}
        self._into = {name: torch.zeros(size) for name in names} if into else None
        self._found: dict[str, torch.Tensor] = {}

    @override
    def prepare(self, number: int) -> None:
        import torch

        mine = os.getpid() % 1000  # so that no client can take another's state for its own
        for index, tensor in enumerate(self._state.values()):
            torch.add(self._base, number + mine + index, out=tensor)

    @override
    def run(self) -> Samples:
        walls = [self._exchange() for _ in range(self.tasks)]
        pushes, pulls = zip(*walls, strict=True)
        return {"push": median(pushes), "pull": median(pulls)}

    def _exchange(self) -> tuple[float, float]:
        """Push and pull; return the seconds of both."""
        self._found = {}
        began = perf_counter()
        self._store.push(self._state)
        pushed = perf_counter()
        self._found = self._store.pull(self._into)
        list(self._found.values())[-1][-1].item()
        return pushed - began, perf_counter() - pushed

    @override
    def check(self) -> bool:
        import torch

        found, self._found = self._found, {}
        return found.keys() == self._state.keys() and all(
            torch.equal(found[name], tensor) for name, tensor in self._state.items()
        )


class Pushes(Part):
    """Pushes small values, one after the other."""

    def __init__(self, calls: int, store: Store) -> None:
        self.tasks = calls
        self._store = store
        self._values: list[bytes] = []

    @override
    def prepare(self, number: int) -> None:
        first = number * self.tasks
        self._values = [_value(each) for each in range(first, first + self.tasks)]

    @override
    def run(self) -> Samples:
        walls, push = [], self._store.push
        for value in self._values:
            began = perf_counter()
            push(value)
            walls.append(perf_counter() - began)
        return spread(walls)

    @override
    def check(self) -> bool:
        return bool(self._store.pull(None) == self._values[-1])


class Pulls(Part):
    """Pulls a small value again and again."""

    def __init__(self, calls: int, store: Store) -> None:
        self.tasks = calls
        self._store = store
        self._value = b""
        self._found: list[object] = []

    @override
    def prepare(self, number: int) -> None:
        self._value = _value(number)
        self._store.push(self._value)

    @override
    def run(self) -> Samples:
        walls, found, pull = [], [], self._store.pull
        for _ in range(self.tasks):
            began = perf_counter()
            value = pull(None)
            walls.append(perf_counter() - began)
            found.append(value)
        self._found = found
        return spread(walls)

    @override
    def check(self) -> bool:
        return all(each == self._value for each in self._found)


def _value(number: int) -> bytes:
    return number.to_bytes(8, "little").ljust(BYTES, b"x")
