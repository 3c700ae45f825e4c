"""Random problems of placing, and the best assignment of one by trying all."""

from __future__ import annotations

import itertools
import random

from pparallel.interfaces.placer import Device, Problem


def random_problem(
    dice: random.Random, models: int, devices: int, *, tight: float | None = None
) -> Problem:
    """Return a problem of so many models and devices; it may have no solution.

    Args:
        dice: what is random.
        models: how many.
        devices: how many.
        tight: what all devices allow, as a multiple of what all models need.
    """
    largest = dice.choice([0.3, 10.0, 4000.0])
    sizes = [
        dice.choice([largest, largest / 2, dice.uniform(0, largest), 0.1 * dice.randint(0, 9)])
        for _ in range(models)
    ]
    room = sum(sizes) * (dice.choice([1.0, 1.02, 1.1, 1.5, 4.0]) if tight is None else tight)
    parts = [dice.choice([0.0, 1.0, dice.random()]) for _ in range(devices - 1)] + [1.0]
    dice.shuffle(parts)
    limits = [room * each / sum(parts) for each in parts]
    dense = dice.choice([0.0, 0.2, 0.5, 1.0])
    connections = [
        [dice.uniform(0, 10) if i != j and dice.random() < dense else 0.0 for j in range(models)]
        for i in range(models)
    ]
    distances = [[0.0] * devices for _ in range(devices)]
    for i, j in itertools.combinations(range(devices), 2):
        distances[i][j] = distances[j][i] = dice.choice([0.0, 1.0, 1.0, 10.0, dice.uniform(0, 3)])
    return Problem(
        models=tuple(f"m{at}" for at in range(models)),
        sizes_mb=tuple(sizes),
        devices=tuple(
            Device(f"cuda:{at}", limit, dice.choice([0.0, 1.0, 1.0, dice.random()]))
            for at, limit in enumerate(limits)
        ),
        limits_mb=tuple(limits),
        connections=tuple(map(tuple, connections)),
        distances=tuple(map(tuple, distances)),
        connection_weight=dice.choice([0.0, 2.0, 10.0, 50.0]),
        complexity_match_weight=dice.choice([0.0, 1.0, 10.0]),
    )


def plain_problem(sizes: list[float], limits: list[float]) -> Problem:
    """Return a problem of nothing but sizes and limits."""
    return Problem(
        models=tuple(f"m{at}" for at in range(len(sizes))),
        sizes_mb=tuple(sizes),
        devices=tuple(Device(f"cuda:{at}", limit, 1.0) for at, limit in enumerate(limits)),
        limits_mb=tuple(limits),
        connections=((0.0,) * len(sizes),) * len(sizes),
        distances=((0.0,) * len(limits),) * len(limits),
        connection_weight=1.0,
        complexity_match_weight=1.0,
    )


def best_cost(problem: Problem) -> float | None:
    """Return the least that an assignment costs which fits, by trying all; ``None``: none fits."""
    devices = range(len(problem.devices))
    everything = itertools.product(devices, repeat=len(problem.models))
    return min((problem.cost(each) for each in everything if problem.fits(each)), default=None)
