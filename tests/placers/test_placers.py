from __future__ import annotations

from typing import ClassVar

import pytest
from typing_extensions import override

from pparallel.interfaces.placer import PlacerConfig
from pparallel.testing import PlacerSuite
from pparallel.testing.placer.laws import LawTests
from pparallel_placers import ExactPlacerConfig, GradientPlacerConfig, GreedyPlacerConfig


class TestGreedyPlacer(PlacerSuite):
    rounds: ClassVar[int] = 20

    @pytest.fixture
    @override
    def config(self) -> PlacerConfig:
        return GreedyPlacerConfig()


class TestGradientPlacer(PlacerSuite):
    rounds: ClassVar[int] = 5  # each takes hundreds of steps

    @pytest.fixture
    @override
    def config(self) -> PlacerConfig:
        return GradientPlacerConfig()


class TestGradientPlacerWithoutLocalSearch(LawTests):
    rounds: ClassVar[int] = 5

    @pytest.fixture
    @override
    def config(self) -> PlacerConfig:
        return GradientPlacerConfig(local_search=False)


class TestExactPlacer(PlacerSuite):
    rounds: ClassVar[int] = 20

    @pytest.fixture
    @override
    def config(self) -> PlacerConfig:
        return ExactPlacerConfig()


class TestEachSolver(LawTests):
    rounds: ClassVar[int] = 10

    @pytest.fixture(params=["highs", "python"])
    @override
    def config(self, request: pytest.FixtureRequest) -> PlacerConfig:
        return ExactPlacerConfig(solver=request.param)
