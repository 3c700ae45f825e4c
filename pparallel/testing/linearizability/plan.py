"""What happens in a run: all of it follows from a seed, but for who is how quick."""

from __future__ import annotations

import random
from collections.abc import Hashable, Set
from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill", "pause", "outlast", "kill all", "pause server", "kill server"]

LIKELY: dict[Kind, float] = {
    "kill": 0.7,
    "pause": 0.8,
    "outlast": 0.06,
    "kill all": 0.15,
    "pause server": 0.5,
    "kill server": 0.6,
}
LARGE = (20_000, 200_000, 1_000_000)  #: bytes of the values in one of four runs


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that befalls a client or the server.

    Attributes:
        kind: what: ``outlast`` is a pause that takes longer than a member may be silent.
        victim: which client, by its place; of no matter where it is not one.
        after: how many operations the victim, or all of them together, have begun before.
        delay: seconds after that.
        lasting: seconds until a pause ends, or the server is started again.
    """

    kind: Kind
    victim: int
    after: int
    delay: float
    lasting: float


@dataclass(frozen=True, slots=True)
class Part:
    """What one client does in an act: its operations follow from these and from their results.

    Attributes:
        seed: the run's.
        name: who it is, in its versions and values; unique in the run.
        number: the same as a number.
        keys: what it uses.
        operations: how many it does.
        nbytes: how large the values are; 0: numbers and strings of all kinds.
    """

    seed: int
    name: str
    number: int
    keys: tuple[Hashable, ...]
    operations: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Act:
    """Clients that work at the same time, and what befalls them."""

    parts: tuple[Part, ...]
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A run: acts one after the other, each with the clients of the one before that still live."""

    seed: int
    acts: tuple[Act, ...]

    @classmethod
    def of(cls, seed: int, possible: Set[Kind]) -> Plan:
        """Draw a run of 3 to 5 clients, with such faults as are *possible*.

        Where all clients can be killed at once, those of a second act find what they left. The
        first client is never killed alone.
        """
        draw = random.Random(seed)
        size, operations = draw.randint(3, 5), draw.randint(12, 24)
        nbytes = draw.choice(LARGE) if draw.random() < 0.25 else 0
        keys = (f"{seed}-a", (seed, b"b"), seed)[: draw.randint(2, 3)]
        kinds = [each for each in LIKELY if each in possible and draw.random() < LIKELY[each]]
        drawn = [each for each in kinds for _ in range(draw.randint(1, 2))]
        faults = [_drawn(draw, each, size, operations) for each in drawn]
        if "kill all" not in kinds:
            parts = tuple(_parts(seed, range(size), keys, operations, nbytes))
            return cls(seed, (Act(parts, tuple(faults)),))
        first = tuple(_parts(seed, range(size), keys, operations, nbytes))
        second = tuple(_parts(seed, range(size, size + 3), keys, operations // 2, nbytes))
        return cls(seed, (Act(first, tuple(faults)), Act(second, ())))


def _drawn(draw: random.Random, kind: Kind, size: int, operations: int) -> Fault:
    victim = draw.randrange(1 if kind == "kill" else 0, size)
    alone = kind in ("kill", "pause", "outlast")
    after = draw.randint(1, operations) if alone else draw.randint(2 * size, 12 * size)
    delay = draw.choice((0.0, draw.uniform(0, 0.0005), draw.uniform(0, 0.003)))
    return Fault(kind, victim, after, delay, draw.choice((0.001, 0.005, 0.02)))


def _parts(
    seed: int, numbers: range, keys: tuple[Hashable, ...], operations: int, nbytes: int
) -> list[Part]:
    return [Part(seed, f"c{each}", each, keys, operations, nbytes) for each in numbers]
