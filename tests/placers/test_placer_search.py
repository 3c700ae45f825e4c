"""Local search and what it stands on, which all placers of ``pparallel_placers`` share."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from placer_problems import best_cost, plain_problem, random_problem

from pparallel.errors import PlacementError
from pparallel.interfaces.placer import Problem
from pparallel_placers import GreedyPlacerConfig, feasibility
from pparallel_placers.draft import Draft, Tables
from pparallel_placers.greedy import GreedyPlacer
from pparallel_placers.local_search import LocalSearch, search
from pparallel_placers.repair import repair

LEAST = 1e-9  #: what rounding may do to a cost


def problems(count: int, seed: int, models: int = 6, devices: int = 4) -> list[Problem]:
    dice = random.Random(seed)
    return [
        random_problem(dice, dice.randint(1, models), dice.randint(1, devices))
        for _ in range(count)
    ]


class TestDraft:
    def test_it_knows_what_every_change_costs(self) -> None:
        dice = random.Random(1)
        for problem in problems(30, 1, models=9, devices=5):
            models, devices = range(len(problem.models)), range(len(problem.devices))
            draft = Draft(Tables(problem), [dice.choice(devices) for _ in models])
            for _ in range(20):
                model, device, other = (dice.choice(each) for each in (models, devices, models))
                before = problem.cost(draft.assignment)
                if dice.random() < 0.5 and device != draft.assignment[model]:
                    expected = draft.move_cost(model, device)
                    room = self._has_room(problem, draft.assignment, model, device)
                    assert draft.may_move(model, device) == room
                    draft.move(model, device)
                elif draft.assignment[other] != draft.assignment[model]:
                    expected = draft.swap_cost(model, other)
                    draft.swap(model, other)
                else:
                    continue
                assert problem.cost(draft.assignment) - before == pytest.approx(expected, abs=LEAST)

    def test_it_knows_what_putting_a_model_costs(self) -> None:
        for problem in problems(30, 2, models=9, devices=5):
            draft = Draft(Tables(problem))
            power = sum(each * each for each in problem.power_shares) * problem.imbalance_weight
            total = power  # before anything is anywhere, each device lacks its share
            for model in range(len(problem.models)):
                device = model % len(problem.devices)
                total += draft.put_cost(model, device)
                draft.put(model, device)
            assert problem.cost(draft.assignment) == pytest.approx(total, abs=LEAST)

    def test_it_allows_the_swaps_that_fit(self) -> None:
        dice = random.Random(3)
        for problem in problems(100, 3, models=9, devices=3):
            models, devices = range(len(problem.models)), range(len(problem.devices))
            draft = Draft(Tables(problem), [dice.choice(devices) for _ in models])
            if not problem.fits(draft.assignment):
                continue
            for one, other in itertools.combinations(models, 2):
                swapped = list(draft.assignment)
                swapped[one], swapped[other] = swapped[other], swapped[one]
                differ = swapped != draft.assignment
                assert draft.may_swap(one, other) == (differ and problem.fits(swapped))

    @staticmethod
    def _has_room(problem: Problem, assignment: list[int], model: int, device: int) -> bool:
        moved = list(assignment)
        moved[model] = device
        return not problem.overflow_mb(moved)[device]


class TestFeasibility:
    def test_it_finds_one_or_proves_that_there_is_none(self) -> None:
        outcomes = set()
        for problem in problems(100, 4):
            exists = best_cost(problem) is not None
            outcomes.add(exists)
            if exists:
                assert problem.fits(feasibility.find(problem)), problem
            else:
                with pytest.raises(PlacementError, match="but no way"):
                    feasibility.find(problem)
        assert outcomes == {True, False}

    def test_what_needs_more_than_rules_of_thumb(self) -> None:
        # Largest first puts 6 and 5 together, or 6 and 4, and then the rest does not fit.
        problem = plain_problem([6.0, 5.0, 5.0, 4.0, 4.0, 3.0, 3.0], [15.0, 15.0])
        assert problem.fits(feasibility.find(problem))
        problem = plain_problem([4.0, 4.0, 3.0, 3.0, 3.0, 3.0], [10.0, 10.0])
        assert problem.fits(feasibility.find(problem))

    def test_a_search_that_gave_up_claims_nothing(self) -> None:
        problem = plain_problem([6.0] * 12 + [5.0], [16.0] * 6)
        with pytest.raises(PlacementError, match="but no way"):
            feasibility.find(problem)
        with pytest.raises(PlacementError, match="within the solver's limits no way"):
            feasibility.find(problem, effort=1)

    def test_many_models_are_no_deep_recursion(self) -> None:
        problem = plain_problem([3.0, 1.0] * 2000, [4003.0, 3997.0])
        assert problem.fits(feasibility.find(problem))

    @pytest.mark.parametrize(
        ("sizes", "limits"),
        [
            ([0.1, 0.2], [0.3]),  # their sum is a little more
            ([0.1, 0.2], [0.1 + 0.2]),
            ([1.1, 2.2], [3.3]),
            ([0.1] * 10, [1.0]),  # and this one rounds to it
            ([2.0**53, 1.0], [2.0**53]),  # a tie, rounded down
            ([2.0**53 + 2, 1.0], [2.0**53 + 2]),  # a tie, rounded up
            ([1e300, 1e-300], [1e300]),
            ([0.0, 0.0], [0.0]),
            ([5e-324], [0.0]),
        ],
    )
    def test_it_agrees_with_the_problem_to_the_last_bit(
        self, sizes: list[float], limits: list[float]
    ) -> None:
        problem = plain_problem(sizes, limits)
        room = feasibility.Room.of(problem)
        assert (sum(room.sizes) <= room.limits[0]) == problem.fits([0] * len(sizes))


class TestRepair:
    def test_what_is_repaired_fits(self) -> None:
        repaired = 0
        for problem in problems(100, 5, models=9):
            draft = Draft(Tables(problem), [0] * len(problem.models))
            if repair(draft):
                repaired += 1
                assert problem.fits(draft.assignment)
        assert repaired

    def test_where_repair_is_stuck_another_is_taken(self) -> None:
        problem = plain_problem([6.0, 5.0, 5.0, 4.0, 4.0, 3.0, 3.0], [15.0, 15.0])
        for start in itertools.product((0, 1), repeat=7):
            assert problem.fits(LocalSearch(problem).fit(start))


class TestSearch:
    def test_it_comes_near_the_best(self) -> None:
        best, found = 0.0, 0.0
        for problem in problems(40, 6):
            least = best_cost(problem)
            if least is None:
                with pytest.raises(PlacementError, match="but no way"):
                    search(problem, starts=20)
                continue
            assignment = search(problem, starts=20)
            assert problem.fits(assignment)
            assert problem.cost(assignment) >= least - LEAST
            best, found = best + least, found + problem.cost(assignment)
        assert found <= best * 1.01

    def test_no_move_and_no_swap_is_left_that_helps(self) -> None:
        for problem in problems(30, 7, models=9):
            try:
                found = LocalSearch(problem).improve([0] * len(problem.models))
            except PlacementError:
                continue
            cost = problem.cost(found)
            for neighbour in neighbours(found, len(problem.devices)):
                assert not problem.fits(neighbour) or problem.cost(neighbour) >= cost - LEAST

    def test_the_same_seed_finds_the_same(self) -> None:
        for problem in problems(10, 8, models=12):
            outcomes = [self._outcome(problem) for _ in range(2)]
            assert outcomes[0] == outcomes[1]

    def test_it_starts_from_what_it_is_given(self) -> None:
        problem = random_problem(random.Random(9), 12, 3, tight=3.0)
        good = search(problem, starts=50)
        found = search(problem, starts=0, initial=[good])
        assert problem.cost(found) <= problem.cost(good)

    def test_more_starts_are_no_worse(self) -> None:
        problem = random_problem(random.Random(10), 16, 4, tight=1.5)
        costs = [problem.cost(search(problem, starts=each)) for each in (1, 4, 100)]
        assert costs == sorted(costs, reverse=True)

    def test_what_comes_too_late_fits_all_the_same(self) -> None:
        for problem in problems(30, 11, models=9):
            if best_fits(problem):
                found = search(problem, starts=1000, deadline=time.monotonic() - 1)
                assert problem.fits(found)

    def test_without_any_start_it_is_what_fits(self) -> None:
        problem = plain_problem([4.0, 4.0, 3.0, 3.0, 3.0, 3.0], [10.0, 10.0])
        assert problem.fits(search(problem, starts=0))

    @staticmethod
    def _outcome(problem: Problem) -> tuple[int, ...] | str:
        try:
            return search(problem, starts=10, seed=3)
        except PlacementError as error:
            return str(error)


class TestGreedyPlacer:
    def test_its_seed_decides(self) -> None:
        problem = random_problem(random.Random(12), 20, 4, tight=1.3)
        found = [
            GreedyPlacer(GreedyPlacerConfig(starts=5, seed=seed)).solve(problem).assignment
            for seed in (0, 0, 1, 2, 3)
        ]
        assert found[0] == found[1]
        assert len(set(found)) > 1

    def test_hundreds_of_models(self) -> None:
        problem = random_problem(random.Random(13), 110, 4, tight=1.1)
        assert problem.fits(GreedyPlacer(GreedyPlacerConfig()).solve(problem).assignment)


def best_fits(problem: Problem) -> bool:
    try:
        feasibility.find(problem)
    except PlacementError:
        return False
    return True


def neighbours(assignment: tuple[int, ...], devices: int) -> list[list[int]]:
    """Return what is one move or one swap away."""
    found = []
    for model, device in itertools.product(range(len(assignment)), range(devices)):
        found.append([*assignment[:model], device, *assignment[model + 1 :]])
    for one, other in itertools.combinations(range(len(assignment)), 2):
        swapped = list(assignment)
        swapped[one], swapped[other] = swapped[other], swapped[one]
        found.append(swapped)
    return found
