"""Situations whose best placement anybody can tell.

Source: the tests of machin's assigner (iffiX/machin, ``test/parallel/test_assigner.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pparallel.interfaces.placer import Device
from pparallel.machine import gpus as found_gpus
from pparallel.testing.placer.base import Place, PlacerTests, gpus

if TYPE_CHECKING:
    from torch import nn

CPU = Device("cpu", 1000.0)
WEIGHTS = {
    "connection_weight": 1,
    "complexity_match_weight": 10,
    "cpu_weight": 0.1,
    "max_mem_ratio": 0.7,
    "model_size_multiplier": 1,
}
TALK = {(0, 1): 1.0}


class SituationTests(PlacerTests):
    """Two models that exchange something, and a few devices."""

    def test_work_goes_where_power_is(self, place: Place) -> None:
        placement = place([10, 10], TALK, [*gpus(2, 1000.0), CPU], **WEIGHTS)
        assert sorted(placement.assignment) == ["cuda:0", "cuda:1"]

    def test_what_talks_is_near(self, place: Place) -> None:
        weights = {**WEIGHTS, "connection_weight": 10, "complexity_match_weight": 1}
        placement = place([10, 10], TALK, [*gpus(2, 1000.0), CPU], **weights)
        assert placement.assignment in (("cuda:0",) * 2, ("cuda:1",) * 2)

    def test_memory_parts_what_talks(self, place: Place) -> None:
        weights = {**WEIGHTS, "connection_weight": 10, "complexity_match_weight": 1}
        placement = place([600, 600], TALK, [*gpus(2, 1000.0), CPU], **weights)
        assert sorted(placement.assignment) == ["cuda:0", "cuda:1"]

    def test_one_gpu(self, place: Place) -> None:
        placement = place([10, 10], TALK, gpus(1, 1000.0), **WEIGHTS)
        assert placement.assignment == ("cuda:0", "cuda:0")
        assert placement.cost == 0

    def test_one_gpu_and_the_cpu(self, place: Place) -> None:
        placement = place([10, 10], TALK, [*gpus(1, 1000.0), CPU], **WEIGHTS)
        assert placement.assignment == ("cuda:0", "cuda:0")

    def test_no_gpu(self, place: Place) -> None:
        assert place([10, 10], TALK, [CPU], **WEIGHTS).assignment == ("cpu", "cpu")

    def test_what_is_there_without_a_gpu(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(found_gpus, "names", list)
        placement = place([10, 10], TALK, **WEIGHTS)
        assert placement.assignment == ("cpu", "cpu")
        (cpu,) = placement.devices
        assert cpu.memory_mb

    def test_nothing_is_moved(self, place: Place) -> None:
        models = two_models()
        before = {name: [*model.parameters()] for name, model in models.items()}
        placement = place(models, {("small", "large"): 1.0}, gpus(2, 1000.0))
        for name, model in models.items():
            after = [*model.parameters()]
            assert all(one is other for one, other in zip(before[name], after, strict=True))
            assert {each.device.type for each in after} == {"cpu"}
        assert placement.sizes_mb == pytest.approx((2 * 4 * 110 / 2**20, 2 * 4 * 10100 / 2**20))
        assert placement.modules == models

    def test_apply_moves(self, place: Place) -> None:
        models = two_models()
        placement = place(models, {("small", "large"): 1.0}, [CPU])
        assert placement.apply() == models
        assert {each.device.type for each in models["large"].parameters()} == {"cpu"}


def two_models() -> dict[str, Any]:
    """Return two modules, of 110 and of 10,100 parameters."""
    from torch import nn

    models: dict[str, nn.Module] = {"small": nn.Linear(10, 10), "large": nn.Linear(100, 100)}
    return models
