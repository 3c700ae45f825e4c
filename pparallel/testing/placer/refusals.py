"""What cannot be placed, and what is no question."""

from __future__ import annotations

from typing import Any

import pytest

from pparallel.errors import ConfigError, PlacementError
from pparallel.interfaces.placer import Device
from pparallel.machine import gpus as found_gpus
from pparallel.testing.placer.base import Place, PlacerTests, gpus
from pparallel.testing.placer.instances import instances

NO_NUMBER, ENDLESS = float("nan"), float("inf")
TWO = [10.0, 10.0]


class RefusalTests(PlacerTests):
    """Errors say what was asked, what there is, and how many MB."""

    def test_more_than_all_devices_allow(self, place: Place) -> None:
        devices = [Device("cuda:0", 10.0, 1.0), Device("cpu", 10.0, 0.1)]
        with pytest.raises(PlacementError, match=r"need 400\.0 MB.* only 10\.0 MB"):
            place([100, 100], {(0, 1): 1.0}, devices)

    def test_more_than_any_device_allows(self, place: Place) -> None:
        message = r"'large' needs 140\.0 MB.* more than 100\.0 MB"
        with pytest.raises(PlacementError, match=message):
            place({"small": 5, "large": 70}, {}, gpus(2, 200.0))

    def test_what_cannot_be_divided(self, place: Place) -> None:
        message = r"need 180\.0 MB.* 200\.0 MB are allowed"
        with pytest.raises(PlacementError, match=message):
            place([60, 60, 60], {}, gpus(2, 100.0), model_size_multiplier=1, max_mem_ratio=1)

    def test_what_fits_is_placed(self, place: Place) -> None:
        for instance in instances(self.rounds, 9, models=8, devices=4, tight=1.0):
            place(instance.sizes, instance.connections, instance.devices, **instance.options)

    def test_connections_that_are_none(self, place: Place) -> None:
        refused: list[tuple[Any, str]] = [
            ({(0, 2): 1.0}, "names model 2, which is not there; there are: 0, 1"),
            ({(-1, 0): 1.0}, "names model -1"),
            ({("0", "one"): 1.0}, "names model 'one'"),
            ({(0, 0): 1.0}, "model '0' with itself"),
            ({(0, 1): -1.0}, "has amount -1"),
            ({(0, 1): NO_NUMBER}, "has amount nan"),
            ({(0, 1): ENDLESS}, "has amount inf"),
            ({(0, 1, 1): 1.0}, "no pair of models"),
        ]
        for connections, message in refused:
            with pytest.raises(ValueError, match=message):
                place(TWO, connections, gpus(2, 1000.0))

    def test_models_that_are_none(self, place: Place) -> None:
        refused: list[tuple[Any, str]] = [
            ([], "no models"),
            ({}, "no models"),
            ({"a": -1.0}, "'a' has size -1 MB"),
            ({"a": NO_NUMBER}, "'a' has size nan MB"),
            ({"a": ENDLESS}, "'a' has size inf MB"),
        ]
        for models, message in refused:
            with pytest.raises(ValueError, match=message):
                place(models, {}, gpus(2, 1000.0))

    def test_what_is_neither_model_nor_size(self, place: Place) -> None:
        with pytest.raises(TypeError, match="model 'a' is 'large', of type str; give a torch mod"):
            place({"a": "large"}, {}, gpus(1, 1000.0))

    def test_devices_that_are_none(self, place: Place) -> None:
        refused: list[tuple[Any, str]] = [
            ([], "no devices"),
            ([Device("cpu", 10.0), "cpu"], "cpu is named twice"),
            ([Device("cuda", 10.0), Device("cuda:0", 20.0)], "cuda:0 is named twice"),
            ([Device("cpu", -1.0)], "memory_mb is -1"),
            ([Device("cpu", NO_NUMBER)], "memory_mb is nan"),
            ([Device("cpu", ENDLESS)], "memory_mb is inf"),
            ([Device("cpu", 10.0, -1.0)], "power is -1"),
            ([Device("cpu", 10.0, NO_NUMBER)], "power is nan"),
            (["GPU 1"], "'GPU 1' is no device"),
            (["meta"], "'meta' is no device"),
        ]
        for devices, message in refused:
            with pytest.raises(ValueError, match=message):
                place([1.0, 1.0], {}, devices)

    def test_a_device_that_does_not_exist(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(found_gpus, "names", lambda: ["cuda:0"])
        message = "cuda:7 does not exist; there are: cuda:0, cpu"
        with pytest.raises(ValueError, match=message):
            place(TWO, {}, ["cpu", "cuda:7"])

    def test_weights_that_are_none(self, place: Place) -> None:
        for option in (
            "cpu_weight",
            "connection_weight",
            "complexity_match_weight",
            "gpu_gpu_distance",
            "cpu_gpu_distance",
            "model_size_multiplier",
        ):
            for value in (-1, NO_NUMBER, ENDLESS):
                with pytest.raises(ConfigError, match=option):
                    place(TWO, {}, gpus(2, 1000.0), **{option: value})

    def test_distances_that_are_none(self, place: Place) -> None:
        refused: list[tuple[Any, str]] = [
            ({"cuda:0": {"cuda:0": 1.0}}, "distance to itself"),
            ({"cuda:0": {"cuda:1": 1.0}, "cuda:1": {"cuda:0": 2.0}}, "1 apart and 2 apart"),
            ({"cuda:0": {"card 1": 1.0}}, "'card 1' is no device"),
        ]
        for distances, message in refused:
            with pytest.raises(ValueError, match=message):
                place(TWO, {}, gpus(2, 1000.0), distances=distances)

    def test_a_distance_that_cannot_be_measured(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(found_gpus, "names", list)
        with pytest.raises(ValueError, match=r"how far cuda:\d is cannot be measured"):
            place(TWO, {}, gpus(2, 1000.0), measure_distances=True)
