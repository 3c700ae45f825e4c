"""The collective ``gloo``."""

from __future__ import annotations

import preloads
import pytest
from gloo_among_threads import among_threads as among_threads
from typing_extensions import override

from pparallel.interfaces.collective import CollectiveConfig
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.testing import CollectiveSuite
from pparallel_process import ProcessLauncherConfig
from pparallel_torch import GlooCollectiveConfig


@pytest.mark.costly
@pytest.mark.usefixtures("among_threads")
class TestGlooAmongThreads(CollectiveSuite):
    @pytest.fixture
    @override
    def config(self, request: pytest.FixtureRequest) -> CollectiveConfig:
        # Without a check, gloo ends the process where tensors do not fit.
        unfit = "test_an_operation_that_does_not_fit" in request.node.name
        return GlooCollectiveConfig(check=unfit)


@pytest.mark.costly
@pytest.mark.usefixtures("among_threads")
class TestCheckedGloo(CollectiveSuite):
    @pytest.fixture
    @override
    def config(self) -> CollectiveConfig:
        return GlooCollectiveConfig(check=True)


@pytest.mark.costly
class TestGlooAmongProcesses(CollectiveSuite):
    @pytest.fixture
    @override
    def config(self, request: pytest.FixtureRequest) -> CollectiveConfig:
        unfit = "test_an_operation_that_does_not_fit" in request.node.name
        return GlooCollectiveConfig(check=unfit)

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=preloads.MEMBERS)
