"""What holds for every placement."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from pparallel.interfaces.placer import Placement, Placer, PlacerConfig
from pparallel.testing.placer.base import Place, PlacerTests, gpus, solved
from pparallel.testing.placer.instances import Instance, best, instances
from pparallel.testing.suite import requires
from pparallel.testing.threads import in_threads

LEAST = 1e-9  #: what rounding may do to a cost


class LawTests(PlacerTests):
    """Random instances, and what a placement of them must be."""

    def test_memory_is_never_exceeded(self, place: Place) -> None:
        for tight in (1.0, 1.1, 3.0):
            for instance in instances(self.rounds, 1, tight=tight):
                placement = solved(place, instance)
                over = instance.overflow(_indices(instance, placement))
                assert over <= LEAST * max(instance.limits), instance

    def test_the_cost_is_as_defined(self, place: Place) -> None:
        for instance in instances(self.rounds, 2):
            placement = solved(place, instance)
            terms = instance.terms(_indices(instance, placement))
            assert dict(placement.terms) == pytest.approx(terms, abs=LEAST), instance
            assert placement.cost == pytest.approx(sum(terms.values()), abs=LEAST), instance

    def test_what_is_asked_is_told(self, place: Place) -> None:
        for instance in instances(self.rounds, 3):
            placement = solved(place, instance)
            assert placement.models == tuple(instance.sizes)
            assert placement.devices == instance.devices
            assert placement.sizes_mb == pytest.approx(instance.needs)
            told = {frozenset(each[:2]): each[2] for each in placement.connections}
            assert sum(told.values()) == pytest.approx(sum(instance.connections.values()))
            assert {*told} == {frozenset(p) for p, much in instance.connections.items() if much}

    def test_a_placement_survives_json(self, place: Place) -> None:
        for instance in instances(5, 4):
            placement = solved(place, instance)
            assert Placement.from_dict(json.loads(json.dumps(placement.to_dict()))) == placement
            assert f"cost {placement.cost:.6g}" in placement.explain()

    @requires("proven")
    def test_the_bound_holds(self, place: Place) -> None:
        for instance in instances(self.rounds, 5, models=5, devices=3):
            placement = solved(place, instance)
            assert placement.bound is not None
            assert placement.bound <= best(instance) + LEAST, instance
            assert placement.bound <= placement.cost + LEAST

    @requires("proven")
    def test_few_models_are_placed_best(self, place: Place) -> None:
        for instance in instances(self.rounds, 6, models=5, devices=3):
            placement = solved(place, instance)
            assert placement.cost <= best(instance) + LEAST, instance
            assert placement.bound is not None
            assert placement.cost - placement.bound <= 1e-6 * max(1.0, placement.cost)

    @requires(lacking=("proven",))
    def test_nothing_is_claimed_without_proof(self, place: Place) -> None:
        for instance in instances(self.rounds, 5, models=5, devices=3):
            bound = solved(place, instance).bound
            assert bound is None or bound <= best(instance) + LEAST

    def test_the_same_call_again(self, config: PlacerConfig, build: Callable[..., Placer]) -> None:
        for instance in instances(5, 7, tight=20.0):
            asked = instance.sizes, instance.connections, instance.devices
            with build(config) as placer, build(config) as another:
                found = [each.place(*asked) for each in (placer, placer, another)]
            assert found == [found[0]] * 3, instance

    def test_many_threads_place_at_once(
        self, config: PlacerConfig, build: Callable[..., Placer]
    ) -> None:
        asked = [
            (each.sizes, each.connections, each.devices)
            for each in instances(4, 8, tight=20.0)  # room enough for the options as they are
        ]
        with build(config) as placer:
            alone = [placer.place(*each) for each in asked]
            together = in_threads(4, lambda at: [placer.place(*asked[at]) for _ in range(5)])
        assert together == [[each] * 5 for each in alone]

    def test_amounts_of_any_magnitude(self, place: Place) -> None:
        sizes = {"a": 10.0, "b": 20.0, "c": 30.0}
        plain = {("a", "b"): 3.0, ("b", "c"): 1.0, ("c", "a"): 0.5}
        expected = place(sizes, plain, gpus(3, 1000.0)).cost
        for scale in (1e-300, 1e-9, 1e9, 1e300):
            connections = {pair: much * scale for pair, much in plain.items()}
            placement = place(sizes, connections, gpus(3, 1000.0))
            assert math.isfinite(placement.cost)
            assert placement.cost == pytest.approx(expected)


def _indices(instance: Instance, placement: Placement) -> list[int]:
    names = [each.name for each in instance.devices]
    return [names.index(each) for each in placement.assignment]
