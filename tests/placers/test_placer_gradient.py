"""The relaxation of placer ``gradient``, its edges, and what its options do."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from placer_problems import best_cost, plain_problem, random_problem
from torch import Tensor

from pparallel.errors import PlacementError
from pparallel.interfaces.placer import Problem
from pparallel_placers import GradientPlacerConfig
from pparallel_placers.gradient import GradientPlacer
from pparallel_placers.relaxation import Relaxation, descend


def test_the_gradient_is_that_of_what_is_minimised() -> None:
    dice, config = random.Random(1), GradientPlacerConfig(size_match_weight=0.3, entropy_weight=2)
    for certainty in 5 * [0.0, 0.7]:
        problem = random_problem(dice, dice.randint(1, 7), dice.randint(1, 4))
        shape = (len(problem.models), 3, len(problem.devices))
        logits = np.random.default_rng(2).standard_normal(shape)
        with torch.enable_grad():
            there = torch.tensor(logits, requires_grad=True)
            for each in there.unbind(1):
                loss(problem, config, each, certainty).backward()
        found = Relaxation(problem, config).gradient(logits, certainty)
        assert there.grad is not None
        np.testing.assert_allclose(found, there.grad.numpy(), atol=1e-9)


def loss(
    problem: Problem, config: GradientPlacerConfig, logits: Tensor, certainty: float
) -> Tensor:
    """Return what the relaxation is to minimise, for logits [n, m], by torch and pair by pair."""
    likely = logits.softmax(-1)
    sizes, limits, traffic, spans, shares, power = (
        torch.tensor(each, dtype=torch.float64)
        for each in (
            problem.sizes_mb,
            problem.limits_mb,
            problem.traffic,
            problem.spans,
            problem.shares,
            problem.power_shares,
        )
    )
    cost = problem.imbalance_weight * ((shares @ likely - power) ** 2).sum()
    for i, j in itertools.combinations(range(len(sizes)), 2):
        cost = cost + traffic[i, j] * (likely[i] @ spans @ likely[j])
    most = float(traffic.sum()) / 2 + problem.imbalance_weight or 1.0
    overflow = (sizes @ likely - limits).clamp(min=0).mean()
    entropy = -(likely * likely.log()).sum(-1).mean()
    weighted: Tensor = config.size_match_weight * overflow
    return cost / most + weighted + certainty * config.entropy_weight * entropy


def test_descents_end_lower_than_they_start() -> None:
    dice, lower = random.Random(3), 0
    for _ in range(20):
        problem = random_problem(dice, 8, 3, tight=4.0)
        start, end = (
            min(map(problem.cost, descend(problem, GradientPlacerConfig(iterations=each))))
            for each in (1, 500)
        )
        assert end <= start + 1e-9 or problem.imbalance_weight == 0
        lower += end < start
    assert lower


def test_it_comes_near_the_best() -> None:
    dice = random.Random(4)
    best, found = 0.0, 0.0
    for _ in range(30):
        problem = random_problem(dice, dice.randint(1, 6), dice.randint(1, 4))
        least = best_cost(problem)
        if least is None:
            with pytest.raises(PlacementError, match="but no way"):
                solved(problem)
            continue
        cost = problem.cost(solved(problem, iterations=200))
        assert cost >= least - 1e-9
        best, found = best + least, found + cost
    assert found <= best * 1.02


def test_its_seed_decides() -> None:
    problem = random_problem(random.Random(5), 20, 4, tight=1.3)
    found = [
        solved(problem, seed=seed, restarts=1, iterations=10, local_search=False)
        for seed in (0, 0, 1, 2, 3)
    ]
    assert found[0] == found[1]
    assert len(set(found)) > 1


@pytest.mark.parametrize("restarts", [1, 8])
@pytest.mark.parametrize("iterations", [1, 7, 100])
def test_few_steps_and_few_restarts(iterations: int, restarts: int) -> None:
    problem = random_problem(random.Random(6), 9, 3, tight=1.2)
    assert problem.fits(solved(problem, iterations=iterations, restarts=restarts))


@pytest.mark.parametrize("weight", [0.0, 1e300])
@pytest.mark.parametrize(
    "option", ["size_match_weight", "entropy_weight", "update_rate", "connection_weight"]
)
def test_weights_at_their_ends(option: str, weight: float) -> None:
    problem = random_problem(random.Random(7), 7, 3, tight=1.2)
    if option == "connection_weight":
        problem = replace(problem, connection_weight=weight)
        assert problem.fits(solved(problem))
    elif weight or option != "update_rate":
        assert problem.fits(solved(problem, **{option: weight}))


@pytest.mark.parametrize(
    ("sizes", "limits"),
    [
        ([1e300, 1e299], [2e300, 1e299]),
        ([1e-300, 1e-305], [1e300, 1.0]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([1.0], [1.0]),
        ([1.0, 2.0, 3.0], [6.0]),
        ([1.0, 2.0, 3.0], [0.0, 6.0, 0.0]),
    ],
)
def test_sizes_at_their_ends(sizes: list[float], limits: list[float]) -> None:
    problem = plain_problem(sizes, limits)
    assert problem.fits(solved(problem))


def solved(problem: Problem, **options: Any) -> tuple[int, ...]:
    return GradientPlacer(GradientPlacerConfig(**options)).solve(problem).assignment
