from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
from typing_extensions import override

import pparallel
from pparallel.interfaces.placer import PlacerConfig
from pparallel.testing import PlacerSuite
from pparallel.testing.placer import instances
from pparallel.testing.suite import changed
from pparallel_placers import ExactPlacerConfig, GradientPlacerConfig, GreedyPlacerConfig


class TestGreedyPlacer(PlacerSuite):
    @pytest.fixture
    @override
    def config(self) -> PlacerConfig:
        return GreedyPlacerConfig()


class TestGradientPlacer(PlacerSuite):
    rounds: ClassVar[int] = 10  # each takes hundreds of steps

    @pytest.fixture
    @override
    def config(self) -> PlacerConfig:
        return GradientPlacerConfig()


class TestExactPlacer(PlacerSuite):
    @pytest.fixture(params=["auto", "highs", "python"])
    @override
    def config(self, request: pytest.FixtureRequest) -> PlacerConfig:
        return ExactPlacerConfig(solver=request.param)


class TestExceedsNoMemory:
    """Random instances in great number, as tight as they can be placed."""

    @pytest.mark.parametrize("part", range(4))
    @pytest.mark.parametrize(
        "config",
        [
            GreedyPlacerConfig(starts=2),
            GradientPlacerConfig(iterations=10, restarts=2),
            ExactPlacerConfig(),
        ],
        ids=["greedy", "gradient", "exact"],
    )
    def test_in_random_instances(
        self, config: PlacerConfig, part: int, scale: Callable[[int], int]
    ) -> None:
        for instance in instances(scale(2500), 100 + part, tight=1.0 + 0.5 * part):
            with pparallel.build(changed(config, **instance.options)) as placer:
                placement = placer.place(instance.sizes, instance.connections, instance.devices)
            names = [each.name for each in placement.devices]
            over = instance.overflow([names.index(each) for each in placement.assignment])
            assert over <= 1e-9 * max(instance.limits)
