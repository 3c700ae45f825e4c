"""An ordered server that is hosted by one of several processes."""

from __future__ import annotations

import preloads
import pytest
from typing_extensions import override

from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.testing.ordered_server.order import OrderTests
from pparallel.testing.ordered_server.waiting import WaitTests
from pparallel_process import ProcessLauncherConfig
from pparallel_servers import HostedOrderedServerConfig


class TestHostedApart(OrderTests):
    """The laws of what several members see."""

    test_one_push_wakes_the_waiters_of_all_members = (
        WaitTests.test_one_push_wakes_the_waiters_of_all_members
    )

    @pytest.fixture
    @override
    def config(self) -> OrderedServerConfig:
        return HostedOrderedServerConfig()

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=preloads.MEMBERS)
