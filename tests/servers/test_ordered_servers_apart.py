"""Ordered servers whose members are processes."""

from __future__ import annotations

from typing import Any

import preloads
import pytest
from typing_extensions import override

from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.testing import OrderedServerSuite
from pparallel_process import ProcessLauncherConfig
from pparallel_servers import HostedOrderedServerConfig


class HostedApart(OrderedServerSuite):
    @pytest.fixture
    @override
    def config(self) -> OrderedServerConfig:
        return HostedOrderedServerConfig()

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=preloads.MEMBERS)


@pytest.mark.costly
class TestHostedApart(HostedApart):
    """Members on this machine, and the first keeps the values."""


@pytest.mark.costly
class TestHostedByAnotherApart(HostedApart):
    """The last keeps them."""

    @override
    def launch(
        self,
        launcher: Any,
        config: OrderedServerConfig,
        size: int,
        target: Any,
        *args: Any,
        leaves: bool = False,
    ) -> list[Any]:
        last = config.model_copy(update={"host": f"member-{size - 1}"})
        return super().launch(launcher, last, size, target, *args, leaves=leaves)
