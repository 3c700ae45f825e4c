"""The exact placer: it is the best, its bound holds, and it keeps to its time."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from pparallel import load
from pparallel.errors import MissingDependencyError, PlacementError
from pparallel.interfaces.placer import Device, Problem, Solution
from pparallel_placers import ExactPlacerConfig
from pparallel_placers.exact import ExactPlacer
from pparallel_placers.local_search import search

SOLVERS = ["highs", "python"]

each_solver = pytest.mark.parametrize("solver", SOLVERS)


def problem(
    sizes: Sequence[float],
    devices: Sequence[Device],
    connections: dict[tuple[int, int], float] | None = None,
    *,
    distances: Sequence[Sequence[float]] = (),
    weight: float = 2.0,
    match: float = 1.0,
) -> Problem:
    """State a problem; the distances are those by kind, unless given."""
    amounts = [[0.0] * len(sizes) for _ in sizes]
    for (i, j), amount in (connections or {}).items():
        amounts[i][j] = amount
    kinds = [
        [
            0.0 if i == j else 10.0 if one.is_cpu or other.is_cpu else 1.0
            for j, other in enumerate(devices)
        ]
        for i, one in enumerate(devices)
    ]
    return Problem(
        models=tuple(f"m{each}" for each in range(len(sizes))),
        sizes_mb=tuple(sizes),
        devices=tuple(devices),
        limits_mb=tuple(each.memory_mb or 0.0 for each in devices),
        connections=tuple(map(tuple, amounts)),
        distances=tuple(map(tuple, distances or kinds)),
        connection_weight=weight,
        complexity_match_weight=match,
    )


def gpus(count: int, memory: float = 1e6, power: float = 1.0) -> list[Device]:
    return [Device(f"cuda:{each}", memory, power) for each in range(count)]


def solve(stated: Problem, solver: str = "highs", **options: Any) -> Solution:
    return ExactPlacer(ExactPlacerConfig(solver=solver, **options)).solve(stated)


def drawn(chance: random.Random, models: int, devices: int) -> Problem:
    """Draw sizes, powers, limits, connections, distances and weights of every kind."""
    few = chance.random() < 0.3  # then many are alike
    sizes = [chance.choice([1.0, 2.0]) if few else chance.uniform(1, 20) for _ in range(models)]
    density = chance.choice([0.0, 0.3, 1.0])
    connections = {
        pair: 1.0 if few else chance.random()
        for pair in itertools.combinations(range(models), 2)
        if chance.random() < density
    }
    powers = [chance.choice([0.0, 1.0, 1.0, chance.uniform(1, 4)]) for _ in range(devices)]
    room = sum(sizes) * chance.choice([1.15 / devices, 2 / devices, 2.0])
    placed = [Device(f"cuda:{at}", room, power) for at, power in enumerate(powers)]
    if chance.random() < 0.4:
        placed[-1] = Device("cpu", room, 0.0)
    distances: list[list[float]] = []
    if chance.random() < 0.3:
        distances = [[0.0] * devices for _ in placed]
        for i, j in itertools.combinations(range(devices), 2):
            distances[i][j] = distances[j][i] = chance.choice([0.0, 1.0, 4.0, chance.random()])
    weight, match = chance.choice([0.0, 2.0, 20.0]), chance.choice([0.0, 1.0, 1.0, 10.0])
    return problem(sizes, placed, connections, distances=distances, weight=weight, match=match)


def least_cost(stated: Problem) -> float | None:
    """Try every assignment."""
    models, devices = len(stated.models), len(stated.devices)
    every = np.array(list(itertools.product(range(devices), repeat=models)))
    spans, shares = np.array(stated.spans), np.array(stated.shares)
    costs, fits = np.zeros(len(every)), np.ones(len(every), bool)
    for i, j in itertools.combinations(range(models), 2):
        costs += stated.traffic[i][j] * spans[every[:, i], every[:, j]]
    for at, limit in enumerate(stated.limits_mb):
        here = every == at
        costs += stated.imbalance_weight * (here @ shares - stated.power_shares[at]) ** 2
        fits &= here @ np.array(stated.sizes_mb) <= limit * (1 + 1e-12)
    costs[~fits] = np.inf
    while (least := costs.min(initial=np.inf)) < np.inf:
        if stated.fits(every[costs.argmin()].tolist()):
            return float(least)
        costs[costs.argmin()] = np.inf  # it was within the tolerance only
    return None


def assert_best(stated: Problem, solution: Solution, least: float) -> None:
    cost = stated.cost(solution.assignment)
    assert cost == pytest.approx(least, rel=1e-10, abs=1e-15)
    assert stated.fits(solution.assignment)
    assert solution.bound == cost


@each_solver
def test_it_is_the_best_of_all(solver: str) -> None:
    for number in range(40):
        chance = random.Random(number)
        stated = drawn(chance, chance.randint(1, 8), chance.randint(1, 4))
        least = least_cost(stated)
        if least is None:
            with pytest.raises(PlacementError):
                solve(stated, solver)
        else:
            assert_best(stated, solve(stated, solver), least)


@each_solver
def test_it_is_the_best_where_memory_is_short_and_models_are_many(solver: str) -> None:
    for number in range(2):
        chance = random.Random(number)
        sizes = [chance.choice([3.0, 5.0, 7.0]) for _ in range(8)]
        pairs = {pair: chance.random() for pair in itertools.combinations(range(8), 2)}
        stated = problem(sizes, gpus(4, sum(sizes) / 4 + 1), pairs, weight=20)
        least = least_cost(stated)
        if least is not None:
            assert_best(stated, solve(stated, solver), least)


def test_both_ways_agree_where_too_many_are_there_to_try() -> None:
    for number in range(4):
        chance = random.Random(number)
        stated = drawn(chance, chance.randint(9, 12), chance.randint(2, 4))
        try:
            one, other = (solve(stated, each, time_limit=60) for each in SOLVERS)
        except PlacementError:
            continue
        costs = [stated.cost(each.assignment) for each in (one, other)]
        assert costs[0] == pytest.approx(costs[1], rel=1e-10, abs=1e-15)
        assert [one.bound, other.bound] == costs


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_sixteen_models_are_proven(devices: int) -> None:
    chance = random.Random(devices)
    pairs = {pair: chance.random() for pair in itertools.combinations(range(16), 2)}
    placed = [*gpus(devices - 1), Device("cpu", 1e6, 0.0)]
    stated = problem([chance.uniform(50, 1000) for _ in range(16)], placed, pairs)
    solution = solve(stated, time_limit=60)
    cost = stated.cost(solution.assignment)
    assert solution.bound == cost
    assert cost <= stated.cost(search(stated, starts=20))


@each_solver
def test_models_alike_on_devices_alike_are_no_more_work(solver: str) -> None:
    stated = problem([1.0] * 24, gpus(8))
    solution = solve(stated, solver, time_limit=60)
    assert solution.bound == stated.cost(solution.assignment)
    assert [solution.assignment.count(each) for each in range(8)] == [3] * 8


def test_a_ring_of_models_alike() -> None:
    ring = {(each, (each + 1) % 16): 1.0 for each in range(16)}
    stated = problem([1.0] * 16, gpus(4), ring)
    solution = solve(stated, time_limit=60)
    assert solution.bound == stated.cost(solution.assignment)
    assert stated.terms(solution.assignment) == pytest.approx(
        {"connection": 2 / 16**2 * 4 / 16 * 2 / 2, "complexity_match": 0.0}
    )


@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
@pytest.mark.parametrize("limit", [1e-6, 0.3])
def test_it_keeps_to_its_time(solver: str, limit: float) -> None:
    chance = random.Random(0)
    pairs = {pair: chance.random() for pair in itertools.combinations(range(60), 2)}
    stated = problem([chance.uniform(1, 20) for _ in range(60)], gpus(8), pairs)
    start = time.monotonic()
    solution = solve(stated, solver, time_limit=limit)
    assert time.monotonic() - start < limit + 10
    assert solution.bound is not None
    assert 0 <= solution.bound <= stated.cost(solution.assignment)
    assert stated.fits(solution.assignment)


@each_solver
def test_the_bound_holds_whenever_the_time_ends(solver: str) -> None:
    chance = random.Random(3)
    pairs = {pair: chance.random() for pair in itertools.combinations(range(14), 2)}
    stated = problem([chance.uniform(1, 20) for _ in range(14)], gpus(4), pairs, weight=20)
    best = solve(stated, time_limit=60)
    least = stated.cost(best.assignment)
    assert best.bound == least
    for limit in (1e-6, 0.01, 0.03, 0.05, 0.1):
        solution = solve(stated, solver, time_limit=limit)
        assert solution.bound is not None
        assert solution.bound <= least
        assert stated.cost(solution.assignment) >= least * (1 - 1e-10)


def test_more_time_leaves_no_larger_gap() -> None:
    chance = random.Random(1)
    pairs = {pair: chance.random() for pair in itertools.combinations(range(24), 2)}
    stated = problem([chance.uniform(1, 20) for _ in range(24)], gpus(4), pairs)
    solution = solve(stated, time_limit=60)
    assert solution.bound == stated.cost(solution.assignment)


@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
def test_the_same_again(solver: str) -> None:
    stated = drawn(random.Random(5), 8, 3)
    assert solve(stated, solver) == solve(stated, solver)


def assigned(devices: list[Device], sizes: float, connection: float, match: float) -> list[str]:
    """Place two models that exchange something, as the seed's assigner documents it."""
    config = load(
        {
            "placer": {
                "backend": "exact",
                "connection_weight": connection,
                "complexity_match_weight": match,
                "cpu_weight": 0.1,
                "max_mem_ratio": 0.7,
                "model_size_multiplier": 1,
            }
        }
    ).placer
    assert isinstance(config, ExactPlacerConfig)
    placement = ExactPlacer(config).place([sizes, sizes], {(0, 1): 1}, devices)
    assert placement.gap == 0
    return list(placement.assignment)


GPUS = [Device("cuda:0", 1000), Device("cuda:1", 1000)]
CPU = Device("cpu", 1000)


def test_what_matters_more_decides() -> None:
    assert sorted(assigned([*GPUS, CPU], 10, 1, 10)) == ["cuda:0", "cuda:1"]
    assert len(set(assigned([*GPUS, CPU], 10, 10, 1))) == 1
    assert "cpu" not in assigned([*GPUS, CPU], 10, 10, 1)


def test_what_does_not_fit_on_one_goes_on_two() -> None:
    assert sorted(assigned([*GPUS, CPU], 600, 10, 1)) == ["cuda:0", "cuda:1"]


def test_one_gpu_or_none() -> None:
    assert assigned([GPUS[0], CPU], 10, 1, 10) == ["cuda:0", "cuda:0"]
    assert assigned([CPU], 10, 1, 10) == ["cpu", "cpu"]


def test_too_little_memory_is_told() -> None:
    small = [Device("cuda:0", 10), Device("cpu", 10)]
    with pytest.raises(PlacementError, match=r"200.0 MB.*14.0 MB"):
        assigned(small, 100, 1, 10)


@each_solver
def test_what_cannot_be_divided_is_refused(solver: str) -> None:
    with pytest.raises(PlacementError, match="no way to divide"):
        solve(problem([6.0, 6.0, 6.0], gpus(2, 10.0)), solver)


def edges() -> Iterator[tuple[str, Problem]]:
    pairs = {(0, 1): 1.0, (1, 2): 2.0}
    yield "one device", problem([1.0, 2.0, 3.0], gpus(1), pairs)
    yield "one model", problem([5.0], gpus(4))
    yield "no connections", problem([1.0, 2.0, 3.0], gpus(2))
    yield "no weights", problem([1.0, 2.0, 3.0], gpus(2), pairs, weight=0, match=0)
    yield "only connections", problem([1.0, 2.0, 3.0], gpus(4), pairs, match=0)
    yield "no power", problem([1.0, 2.0, 3.0], gpus(3, power=0.0), pairs)
    yield "no sizes", problem([0.0, 0.0, 0.0], gpus(3), pairs)
    yield "no sizes, no room", problem([0.0, 0.0, 0.0], gpus(3, 0.0), pairs)
    yield "some without a size", problem([0.0, 2.0, 0.0], gpus(3), pairs)
    yield "no distances", problem([1.0, 2.0, 3.0], gpus(2), pairs, distances=[[0, 0], [0, 0]])
    yield "huge sizes", problem([1e300, 2e300, 3e300], gpus(2, 1e301), pairs)
    yield "tiny sizes", problem([1e-300, 2e-300, 3e-300], gpus(2), pairs)
    yield "huge beside tiny", problem([1e12, 1e-12, 1e-12], gpus(2, 1e12), pairs)
    yield "exactly full", problem([0.1, 0.2, 0.3], gpus(2, 0.1 + 0.2), pairs)
    yield "huge weights", problem([1.0, 2.0, 3.0], gpus(2), pairs, weight=1e150, match=1e-150)
    yield "tiny weights", problem([1.0, 2.0, 3.0], gpus(2), pairs, weight=1e-150, match=1e-150)
    yield (
        "no triangles",
        problem([1.0, 2.0, 3.0], gpus(3), pairs, distances=[[0, 9, 1], [9, 0, 1], [1, 1, 0]]),
    )


@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
def test_edges(solver: str) -> None:
    for name, stated in edges():
        least = least_cost(stated)
        assert least is not None, name
        solution = solve(stated, solver)
        cost = stated.cost(solution.assignment)
        unit = sum(map(sum, stated.traffic)) + stated.imbalance_weight
        assert cost == pytest.approx(least, rel=1e-10, abs=1e-14 * unit), name
        assert stated.fits(solution.assignment), name
        assert solution.bound == cost, name


def test_a_solver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(MissingDependencyError, match=r"highspy.*pparallel\[placement\]"):
        ExactPlacer(ExactPlacerConfig(solver="highs")).open()
    with pytest.raises(MissingDependencyError, match="highspy"):
        solve(problem([1.0], gpus(2)), "highs")


def test_without_the_solver_it_is_proven_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    monkeypatch.setitem(sys.modules, "numpy", None)
    stated = drawn(random.Random(2), 8, 4)
    solution = solve(stated, "auto")
    assert solution.bound == stated.cost(solution.assignment)
