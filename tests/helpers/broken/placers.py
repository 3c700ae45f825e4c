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


class TellsWhatItMinimised(GreedyPlacer):
    """Leaves a term out, and so does the cost that it tells."""

    @override
    def place(self, models: Any, connections: Any, devices: Any = None) -> Placement:
        placement = super().place(models, connections, devices)
        return replace(placement, cost=placement.terms["connection"])


@rejected_by("test_the_cost_is_as_defined")
class TestTellsWhatItMinimised(PlacerSuite):
    config = backends.config(TellsWhatItMinimised)


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
