"""Where sums are 0, and other ends of what is allowed."""

from __future__ import annotations

import math

import pytest

from pparallel.interfaces.placer import Device, Placement
from pparallel.testing.placer.base import Place, PlacerTests, gpus

SIZES = {"a": 10.0, "b": 20.0, "c": 30.0}
TALK = {("a", "b"): 1.0, ("b", "c"): 2.0}


class EdgeTests(PlacerTests):
    """A term whose sum is 0 is 0, and never no number."""

    def test_no_connections(self, place: Place) -> None:
        placement = place(SIZES, {}, gpus(2, 1000.0))
        assert _finite(placement).terms["connection"] == 0

    def test_connections_of_nothing(self, place: Place) -> None:
        placement = place(SIZES, {("a", "b"): 0.0}, gpus(2, 1000.0))
        assert _finite(placement).terms["connection"] == 0

    def test_one_device(self, place: Place) -> None:
        placement = place(SIZES, TALK, gpus(1, 1000.0))
        assert placement.assignment == ("cuda:0",) * 3
        assert _finite(placement).cost == 0

    def test_one_model(self, place: Place) -> None:
        placement = place({"a": 10.0}, {}, [Device("cuda:0", 1000.0, 0.0), *gpus(3, 1000.0)[1:]])
        assert _finite(placement).assignment[0] != "cuda:0"

    def test_no_power_at_all(self, place: Place) -> None:
        devices = [Device("cuda:0", 1000.0, 0.0), Device("cpu", 1000.0, 0.0)]
        placement = place(SIZES, TALK, devices)
        assert _finite(placement).terms["complexity_match"] == 0

    def test_models_without_a_size(self, place: Place) -> None:
        placement = place(dict.fromkeys(SIZES, 0.0), TALK, gpus(2, 1000.0))
        assert _finite(placement).terms["complexity_match"] == 0

    def test_models_without_a_size_on_devices_without_memory(self, place: Place) -> None:
        placement = place(dict.fromkeys(SIZES, 0.0), TALK, gpus(2, 0.0))
        assert _finite(placement).sizes_mb == (0, 0, 0)

    def test_a_device_without_memory(self, place: Place) -> None:
        placement = place(SIZES, TALK, [Device("cuda:0", 0.0, 1.0), Device("cuda:1", 1000.0, 0.1)])
        assert _finite(placement).assignment == ("cuda:1",) * 3

    def test_no_distance(self, place: Place) -> None:
        placement = place(SIZES, TALK, gpus(2, 1000.0), gpu_gpu_distance=0)
        assert _finite(placement).terms["connection"] == 0

    def test_no_weights(self, place: Place) -> None:
        weights = {"connection_weight": 0, "complexity_match_weight": 0}
        assert _finite(place(SIZES, TALK, gpus(2, 1000.0), **weights)).cost == 0

    def test_to_the_last_byte(self, place: Place) -> None:
        placement = place(SIZES, TALK, gpus(2, 60.0), model_size_multiplier=1, max_mem_ratio=0.5)
        assert placement.assignment[0] == placement.assignment[1] != placement.assignment[2]

    def test_both_directions_add_up(self, place: Place) -> None:
        twice = {("a", "b"): 1.0, ("b", "a"): 3.0, ("b", "c"): 1.0}
        placement = place(SIZES, twice, gpus(2, 1000.0))
        assert placement.connections == (("a", "b", 4.0), ("b", "c", 1.0))

    def test_what_a_sequence_calls_models(self, place: Place) -> None:
        placement = place([10, 20.0], {(0, 1): 1, ("1", "0"): 2}, gpus(1, 1000.0))
        assert placement.models == ("0", "1")
        assert placement.connections == (("0", "1", 3.0),)

    def test_distances_that_are_given(self, place: Place) -> None:
        devices = gpus(3, 100.0)
        distances = {"cuda:0": {"cuda:1": 5.0, "cuda:2": 1.0}, "cuda:2": {"cuda:1": 5.0}}
        weights = {"connection_weight": 100, "model_size_multiplier": 1, "max_mem_ratio": 1}
        placement = place([60, 60], {(0, 1): 1.0}, devices, distances=distances, **weights)
        assert sorted(placement.assignment) == ["cuda:0", "cuda:2"]

    def test_a_name_is_written_in_more_than_one_way(self, place: Place) -> None:
        placement = place(SIZES, TALK, [Device("cuda", 1000.0), Device("cpu:0", 1000.0)])
        assert [each.name for each in placement.devices] == ["cuda:0", "cpu"]
        assert [each.power for each in placement.devices] == [1.0, pytest.approx(0.0)]


def _finite(placement: Placement) -> Placement:
    """Return *placement* if it has no number that is none."""
    numbers = [placement.cost, *placement.terms.values()]
    if placement.bound is not None:
        numbers.append(placement.bound)
    assert all(map(math.isfinite, numbers)), placement
    return placement
