"""Random placement problems, in families."""

from __future__ import annotations

import random
from typing import NamedTuple

from pparallel.interfaces.placer import Device, Problem


class Family(NamedTuple):
    """How instances are drawn.

    Attributes:
        cpu: whether the last device is a CPU, ten times as far, and without power.
        unlike: whether the other devices' powers differ: from 1 to 4; else all have 1.
        density: the share of pairs that exchange something, between 0 and 1 each.
        room: the memory of each device beside what its share of the models needs.
        weight: of the connections.
    """

    cpu: bool = True
    unlike: bool = False
    density: float = 0.5
    room: float = 4.0
    weight: float = 2.0


#: The first has the default options and devices; each of the others differs from it as it is named.
FAMILIES = {
    "GPUs and a CPU": Family(),
    "no CPU": Family(cpu=False),
    "unlike powers": Family(unlike=True),
    "sparse": Family(density=0.2),
    "dense": Family(density=1.0),
    "tight memory": Family(room=1.1),
    "heavy connections": Family(weight=20.0),
    "no CPU, unlike, heavy": Family(cpu=False, unlike=True, weight=20.0),
}


def instance(family: Family, models: int, devices: int, number: int) -> Problem:
    """Return an instance; the same for the same arguments. Models need 50 to 1000 MB each."""
    chance = random.Random(f"{family} {models} {devices} {number}")
    sizes = [chance.uniform(50, 1000) for _ in range(models)]
    amounts = [[0.0] * models for _ in range(models)]
    for i in range(models):
        for j in range(i):
            if chance.random() < family.density:
                amounts[i][j] = chance.random()
    kinds = ["cuda"] * devices
    if family.cpu:
        kinds[-1] = "cpu"
    powers = [
        0.0 if kind == "cpu" else chance.uniform(1, 4) if family.unlike else 1.0 for kind in kinds
    ]
    total = sum(sizes)
    shares = [power / sum(powers) for power in powers]
    # However tight it is, the largest finds room.
    limits = [max(total * (share or 1.0) * family.room, max(sizes)) for share in shares]
    distances = [
        [0.0 if i == j else 10.0 if "cpu" in (kinds[i], kinds[j]) else 1.0 for j in range(devices)]
        for i in range(devices)
    ]
    return Problem(
        models=tuple(f"model {each}" for each in range(models)),
        sizes_mb=tuple(sizes),
        devices=tuple(
            Device(kind if kind == "cpu" else f"cuda:{at}", limits[at], powers[at])
            for at, kind in enumerate(kinds)
        ),
        limits_mb=tuple(limits),
        connections=tuple(map(tuple, amounts)),
        distances=tuple(map(tuple, distances)),
        connection_weight=family.weight,
        complexity_match_weight=1.0,
    )
