"""The problem in numbers, and that what solvers answer is checked."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from pparallel.errors import PlacementError
from pparallel.interfaces.placer import (
    Device,
    Placement,
    Placer,
    PlacerConfig,
    Problem,
    Solution,
)
from pparallel.testing.placer import Instance, instances

TWO = (Device("cuda:0", 100.0, 1.0), Device("cuda:1", 100.0, 1.0))


class Answers(Placer):
    """Answers what it is told to, and keeps the problem."""

    def __init__(self, answer: Any = None, **options: Any) -> None:
        super().__init__(PlacerConfig(backend="answers", **options))
        self.answer = answer

    @override
    def solve(self, problem: Problem) -> Solution:
        self.problem = problem
        count = len(problem.models)
        return Solution((0,) * count if self.answer is None else self.answer)


def problem_of(instance: Instance) -> Problem:
    """What a backend is given to solve; the memory is ample, as what is put on it is any."""
    ample = [Device(each.name, 1e9, each.power) for each in instance.devices]
    placer = Answers(**instance.options)
    placer.place(instance.sizes, instance.connections, ample)
    return placer.problem


seeds = st.integers(0, 2**32)


def test_names_that_are_one_text_are_refused() -> None:
    """A placement has text for names, and one of the models would be dropped."""
    models: Any = {1: 2.0, "2": 1.0, "1": 3.0}
    message = r"models 1 and '1' have one name.*rename one"
    with pytest.raises(ValueError, match=message):
        Answers().place(models, {}, TWO)
    numbered: Any = {1: 2.0, 2: 3.0}
    placement = Answers().place(numbered, {(1, 2): 1.0}, TWO)
    assert placement.models == ("1", "2")
    with pytest.raises(ValueError, match=message):
        placement.apply(models)


@given(seed=seeds, data=st.data())
def test_the_cost_is_that_of_the_formula(seed: int, data: st.DataObject) -> None:
    (instance,) = instances(1, seed)
    problem = problem_of(instance)
    device = st.integers(0, len(problem.devices) - 1)
    assignment = [data.draw(device) for _ in problem.models]
    assert problem.terms(assignment) == pytest.approx(instance.terms(assignment), abs=1e-12)
    assert problem.cost(assignment) == pytest.approx(instance.cost(assignment), abs=1e-12)


@given(seed=seeds, data=st.data())
def test_the_coefficients_of_solvers_give_the_cost(seed: int, data: st.DataObject) -> None:
    (instance,) = instances(1, seed)
    problem = problem_of(instance)
    device = st.integers(0, len(problem.devices) - 1)
    where = [data.draw(device) for _ in problem.models]
    n, m = len(problem.models), len(problem.devices)
    near = sum(
        problem.traffic[i][j] * problem.spans[where[i]][where[j]]
        for j in range(n)
        for i in range(j)
    )
    loads = [sum(problem.shares[i] for i in range(n) if where[i] == d) for d in range(m)]
    uneven = sum((load - p) ** 2 for load, p in zip(loads, problem.power_shares, strict=True))
    cost = near + problem.imbalance_weight * uneven
    assert problem.cost(where) == pytest.approx(cost, abs=1e-12)
    for matrix in (problem.traffic, problem.spans, problem.distances):
        assert all(matrix[i][j] == matrix[j][i] for i in range(len(matrix)) for j in range(i))
        assert all(not row[at] for at, row in enumerate(matrix))
    assert max(map(max, problem.spans)) in (0, 1)


@given(seed=seeds, data=st.data())
def test_what_fits(seed: int, data: st.DataObject) -> None:
    (instance,) = instances(1, seed)
    placer = Answers(**instance.options)
    try:
        placer.place(instance.sizes, instance.connections, instance.devices)
    except RuntimeError:
        assert not placer.problem.fits([0] * len(instance.sizes))
    problem = placer.problem
    where = data.draw(
        st.lists(
            st.integers(0, len(problem.devices) - 1),
            min_size=len(problem.models),
            max_size=len(problem.models),
        )
    )
    over = problem.overflow_mb(where)
    assert problem.fits(where) == (not any(over))
    assert max(over) == pytest.approx(max(0.0, instance.overflow(where)), abs=1e-6)
    assert math.fsum(problem.used_mb(where)) == pytest.approx(sum(instance.needs))


@given(
    sizes=st.lists(st.floats(0, 1e150), min_size=1, max_size=5),
    amount=st.floats(0, 1.7e308),
    power=st.floats(0, 1.7e308),
)
def test_no_number_is_too_large(sizes: list[float], amount: float, power: float) -> None:
    placer = Answers()
    connections = {(i, j): amount for i in range(len(sizes)) for j in range(len(sizes)) if i != j}
    devices = [Device("cuda:0", 1e306, power), Device("cuda:1", 1e306, power)]
    placement = placer.place(sizes, connections, devices)
    assert all(map(math.isfinite, placement.terms.values()))


@pytest.mark.parametrize(
    "answer", [(0,), (0, 1, 1), (0, 2), (0, -1), (0, 1.0), (0, None), ("cuda:0", "cuda:1")]
)
def test_an_answer_that_is_none(answer: Any) -> None:
    message = r"Answers\.solve answered .* for each of 2 models, the index of one of 2 devices"
    with pytest.raises(RuntimeError, match=message):
        Answers(answer).place([1, 1], {}, TWO)


def test_an_answer_that_breaks_the_limit() -> None:
    message = r"broke the memory limit \(cuda:0 needs 60\.0 MB and allows 50\.0 MB\)"
    with pytest.raises(RuntimeError, match=message):
        Answers((0, 0)).place([15, 15], {}, TWO)


def test_the_impossible_is_not_tried() -> None:
    placer = Answers()
    with pytest.raises(PlacementError, match=r"need 180\.0 MB in total, and only 100\.0 MB"):
        placer.place([30, 30, 30], {}, TWO)
    with pytest.raises(PlacementError, match=r"'1' needs 60\.0 MB.* more than 50\.0 MB"):
        placer.place([1, 30], {}, TWO)
    assert not hasattr(placer, "problem")


@pytest.mark.parametrize(("proven", "told"), [(True, "but no way"), (False, "solver's limits no")])
def test_no_room(proven: bool, told: str) -> None:
    placer = Answers((0, 1))
    placer.place({"a": 20, "b": 15}, {}, TWO)
    message = str(placer.problem.no_room(proven=proven))
    assert told in message
    assert "70.0 MB in total and 100.0 MB are allowed in total" in message
    assert "(a: 40.0, b: 30.0)" in message
    assert "(cuda:0: 50.0, cuda:1: 50.0); give more devices" in message


def test_what_is_expected_of_a_backend_is_solve_alone() -> None:
    assert Placer.__abstractmethods__ == {"solve"}
    with Answers() as placer:
        assert isinstance(placer.place([1], {}, ["cpu"]), Placement)


def test_models_that_have_names_may_be_called_by_their_index() -> None:
    mixed: dict[tuple[str | int, str | int], float] = {("a", 1): 3.0}
    placement = Answers().place({"a": 1, "b": 2}, mixed, TWO)
    assert placement.connections == (("a", "b", 3.0),)


def test_names_that_look_like_an_index_are_names() -> None:
    mixed: dict[tuple[str | int, str | int], float] = {(1, "x"): 3.0}
    placement = Answers().place({"1": 1, "0": 2, "x": 3}, mixed, TWO)
    assert placement.connections == (("1", "x", 3.0),)
