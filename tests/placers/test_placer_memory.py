"""No placer returns a placement that exceeds a device's memory; hundreds of random problems."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
from placer_problems import best_cost, random_problem

from pparallel.errors import PlacementError
from pparallel.interfaces.placer import Placer, Problem
from pparallel_placers import ExactPlacerConfig, GradientPlacerConfig, GreedyPlacerConfig
from pparallel_placers.exact import ExactPlacer
from pparallel_placers.gradient import GradientPlacer
from pparallel_placers.greedy import GreedyPlacer

ROUNDS = 300


def solve(placer: Placer, problem: Problem) -> bool:
    """Let a placer solve a problem; return whether it found a placement, which must fit."""
    try:
        assignment = placer.solve(problem).assignment
    except PlacementError:
        return False
    assert len(assignment) == len(problem.models)
    for device, limit in enumerate(problem.limits_mb):
        here = (size for size, at in zip(problem.sizes_mb, assignment, strict=True) if at == device)
        assert math.fsum(here) <= limit, (problem, assignment)
    return True


def problems(count: int, seed: int, models: int, devices: int) -> Iterator[Problem]:
    dice = random.Random(seed)
    for _ in range(count):
        yield random_problem(dice, dice.randint(1, models), dice.randint(1, devices))


@pytest.mark.parametrize("local_search", [False, True])
def test_gradient(local_search: bool) -> None:
    config = GradientPlacerConfig(iterations=10, restarts=2, local_search=local_search)
    placer = GradientPlacer(config)
    found = [solve(placer, each) for each in problems(ROUNDS, 1, 9, 5)]
    assert any(found)
    assert not all(found)


def test_greedy() -> None:
    placer = GreedyPlacer(GreedyPlacerConfig(starts=3))
    found = [solve(placer, each) for each in problems(ROUNDS, 2, 9, 5)]
    assert any(found)
    assert not all(found)


def test_exact() -> None:
    placer = ExactPlacer(ExactPlacerConfig())
    found = [solve(placer, each) for each in problems(ROUNDS, 3, 5, 4)]
    assert any(found)
    assert not all(found)


def test_all_agree_whether_there_is_a_placement() -> None:
    placers: list[Placer] = [
        GreedyPlacer(GreedyPlacerConfig(starts=1)),
        GradientPlacer(GradientPlacerConfig(iterations=3, restarts=1)),
        ExactPlacer(ExactPlacerConfig()),
    ]
    for problem in problems(40, 4, 5, 4):
        exists = best_cost(problem) is not None
        assert [solve(each, problem) for each in placers] == [exists] * 3, problem
