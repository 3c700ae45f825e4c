"""Broken placers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

from typing_extensions import override

import pparallel_placers
from broken.harness import Backends, rejected_by
from pparallel.errors import PlacementError
from pparallel.interfaces.placer import Device, Placement, Problem, Solution
from pparallel.plugin import Backend, hookimpl
from pparallel.testing import PlacerSuite
from pparallel_placers import GreedyPlacerConfig
from pparallel_placers.greedy import GreedyPlacer

backends = Backends(GreedyPlacerConfig, pparallel_placers)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return backends.records


class BelievesInMoreMemory(GreedyPlacer):
    """Takes other limits for the devices' own, and tells that it kept to them."""

    factor: ClassVar[float] = 2.0

    @override
    def place(self, models: Any, connections: Any, devices: Any = None) -> Placement:
        given = [each if isinstance(each, Device) else Device(each) for each in devices or ["cpu"]]
        larger = [
            each
            if each.memory_mb is None
            else replace(each, memory_mb=each.memory_mb * self.factor)
            for each in given
        ]
        placement = super().place(models, connections, larger)
        kept = {each.name: each for each in given}
        back = tuple(
            replace(each, memory_mb=kept[each.name].memory_mb) if each.name in kept else each
            for each in placement.devices
        )
        return replace(placement, devices=back)


@rejected_by("test_memory_is_never_exceeded", "test_memory_parts_what_talks")
class TestBelievesInMoreMemory(PlacerSuite):
    config = backends.config(BelievesInMoreMemory)


class SeesNoMemory(BelievesInMoreMemory):
    """Memory is a wish to it."""

    factor = 1e6


@rejected_by(
    "test_memory_is_never_exceeded",
    "test_more_than_all_devices_allow",
    "test_more_than_any_device_allows",
    "test_what_cannot_be_divided",
)
class TestSeesNoMemory(PlacerSuite):
    config = backends.config(SeesNoMemory)


class GivesUpEarly(GreedyPlacer):
    """Puts each model on the first device with room, and never thinks again."""

    @override
    def solve(self, problem: Problem) -> Solution:
        chosen: list[int] = []
        left = list(problem.limits_mb)
        for size in problem.sizes_mb:
            at = next((at for at, room in enumerate(left) if size <= room), None)
            if at is None:
                raise problem.no_room(proven=False)
            left[at] -= size
            chosen.append(at)
        return Solution(tuple(chosen))


@rejected_by("test_what_fits_is_placed", "test_work_goes_where_power_is")
class TestGivesUpEarly(PlacerSuite):
    config = backends.config(GivesUpEarly)


class TellsNoNumbers(GreedyPlacer):
    @override
    def place(self, models: Any, connections: Any, devices: Any = None) -> Placement:
        try:
            return super().place(models, connections, devices)
        except PlacementError:
            raise PlacementError("out of memory") from None


@rejected_by(
    "test_more_than_all_devices_allow",
    "test_more_than_any_device_allows",
    "test_what_cannot_be_divided",
)
class TestTellsNoNumbers(PlacerSuite):
    config = backends.config(TellsNoNumbers)


class MeansOverOthers(GreedyPlacer):
    """Takes the mean over the pairs of different models, not over all pairs."""

    @override
    def place(self, models: Any, connections: Any, devices: Any = None) -> Placement:
        placement = super().place(models, connections, devices)
        n = len(placement.models)
        factor = n / (n - 1) if n > 1 else 1.0
        terms = {**placement.terms, "connection": placement.terms["connection"] * factor}
        return replace(placement, terms=terms, cost=sum(terms.values()))


@rejected_by("test_the_cost_is_as_defined")
class TestMeansOverOthers(PlacerSuite):
    config = backends.config(MeansOverOthers)


class TellsWhatItMinimised(GreedyPlacer):
    """Leaves a term out, and so does the cost that it tells."""

    @override
    def place(self, models: Any, connections: Any, devices: Any = None) -> Placement:
        placement = super().place(models, connections, devices)
        return replace(placement, cost=placement.terms["connection"])


@rejected_by("test_the_cost_is_as_defined")
class TestTellsWhatItMinimised(PlacerSuite):
    config = backends.config(TellsWhatItMinimised)


class DividesByNothing(GreedyPlacer):
    """Has no number where a sum is 0, as the seed."""

    @override
    def place(self, models: Any, connections: Any, devices: Any = None) -> Placement:
        placement = super().place(models, connections, devices)
        if not placement.connections or len(placement.devices) == 1:
            return replace(placement, cost=float("nan"))
        return placement


@rejected_by("test_no_connections", "test_one_device", "test_connections_of_nothing")
class TestDividesByNothing(PlacerSuite):
    config = backends.config(DividesByNothing)


class ProvesTooMuch(GreedyPlacer):
    """What it found first is the best, it says."""

    features: ClassVar[frozenset[str]] = frozenset({"proven"})

    @override
    def solve(self, problem: Problem) -> Solution:
        devices = range(len(problem.devices))
        every = itertools.product(devices, repeat=len(problem.models))
        first = next(each for each in every if problem.fits(each))
        return Solution(first, bound=problem.cost(first))


@rejected_by("test_the_bound_holds", "test_few_models_are_placed_best")
class TestProvesTooMuch(PlacerSuite):
    config = backends.config(ProvesTooMuch)


class ProvesNothing(GreedyPlacer):
    """No placement costs less than nothing."""

    features: ClassVar[frozenset[str]] = frozenset({"proven"})

    @override
    def solve(self, problem: Problem) -> Solution:
        return replace(super().solve(problem), bound=0.0)


@rejected_by("test_few_models_are_placed_best")
class TestProvesNothing(PlacerSuite):
    config = backends.config(ProvesNothing)


class ClaimsInPassing(GreedyPlacer):
    """Has a bound, though it does not say that it proves any, and the bound is wrong."""

    features: ClassVar[frozenset[str]] = frozenset()

    @override
    def solve(self, problem: Problem) -> Solution:
        solution = super().solve(problem)
        return replace(solution, bound=problem.cost(solution.assignment) + 0.01)


@rejected_by("test_nothing_is_claimed_without_proof")
class TestClaimsInPassing(PlacerSuite):
    config = backends.config(ClaimsInPassing)


class ThrowsDice(GreedyPlacer):
    """Answers this or that, whatever fits."""

    @override
    def solve(self, problem: Problem) -> Solution:
        devices = range(len(problem.devices))
        for _ in range(1000):
            thrown = tuple(random.choice(devices) for _ in problem.models)
            if problem.fits(thrown):
                return Solution(thrown)
        return super().solve(problem)


@rejected_by("test_the_same_call_again")
class TestThrowsDice(PlacerSuite):
    config = backends.config(ThrowsDice)


class MovesAtOnce(GreedyPlacer):
    """Makes of each model another, as moving to another device may."""

    @override
    def place(self, models: Any, connections: Any, devices: Any = None) -> Placement:
        placement = super().place(models, connections, devices)
        for model in placement.modules.values():
            for module in model.modules():
                for name, parameter in [*module.named_parameters(recurse=False)]:
                    module.register_parameter(name, type(parameter)(parameter.detach().clone()))
        return placement


@rejected_by("test_nothing_is_moved")
class TestMovesAtOnce(PlacerSuite):
    config = backends.config(MovesAtOnce)


class HasOneDesk(GreedyPlacer):
    """Lays each problem where the next thread lays its own."""

    _desk: Problem

    @override
    def solve(self, problem: Problem) -> Solution:
        self._desk = problem
        solution = super().solve(problem)
        if self._desk is not problem:
            return Solution((0,) * len(problem.models))
        return solution


@rejected_by("test_many_threads_place_at_once")
class TestHasOneDesk(PlacerSuite):
    config = backends.config(HasOneDesk)


class TakesWhatComes(GreedyPlacer):
    """Leaves out the connections that it does not understand."""

    @override
    def place(self, models: Any, connections: Any, devices: Any = None) -> Placement:
        known = {str(each) for each in (models if isinstance(models, dict) else range(len(models)))}
        understood = {
            pair: much
            for pair, much in connections.items()
            if len(pair) == 2 and {*map(str, pair)} <= known and pair[0] != pair[1] and much >= 0
        }
        return super().place(models, understood, devices)


@rejected_by("test_connections_that_are_none")
class TestTakesWhatComes(PlacerSuite):
    config = backends.config(TakesWhatComes)


class DropsAbsentDevices(GreedyPlacer):
    """Takes the CPU where a device is not there."""

    @override
    def place(self, models: Any, connections: Any, devices: Any = None) -> Placement:
        try:
            return super().place(models, connections, devices)
        except ValueError as error:
            if "does not exist" not in str(error):
                raise
            return super().place(models, connections, ["cpu"])


@rejected_by("test_a_device_that_does_not_exist")
class TestDropsAbsentDevices(PlacerSuite):
    config = backends.config(DropsAbsentDevices)


class CountsOneDirection(GreedyPlacer):
    """Of two amounts between the same two models, it takes the first."""

    @override
    def place(self, models: Any, connections: Any, devices: Any = None) -> Placement:
        first: dict[frozenset[Any], Any] = {}
        for pair, much in connections.items():
            first.setdefault(frozenset(map(str, pair)), (pair, much))
        return super().place(models, dict(first.values()), devices)


@rejected_by("test_both_directions_add_up", "test_the_cost_is_as_defined")
class TestCountsOneDirection(PlacerSuite):
    config = backends.config(CountsOneDirection)


class AddsFirst(GreedyPlacer):
    """Adds amounts up that are too large to be added."""

    @override
    def place(self, models: Any, connections: Any, devices: Any = None) -> Placement:
        placement = super().place(models, connections, devices)
        total = sum(each * 1e9 for each in connections.values())
        return replace(placement, cost=placement.cost * total / total if total else placement.cost)


@rejected_by("test_amounts_of_any_magnitude")
class TestAddsFirst(PlacerSuite):
    config = backends.config(AddsFirst)
