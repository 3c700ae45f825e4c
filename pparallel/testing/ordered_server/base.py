"""What the tests of ordered servers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

import pparallel
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.ordered_server import OrderedServer, OrderedServerConfig
from pparallel.testing.suite import Suite, changed

DEPTH = 3  #: versions that are held of each key, where a test says nothing else


class OrderedServerTests(Suite):
    """Gives each test a server, or members that share one."""

    interface: ClassVar[str] = "ordered_server"

    @pytest.fixture
    def server(
        self, config: OrderedServerConfig, build: Callable[..., OrderedServer]
    ) -> Iterator[OrderedServer]:
        """A server of one member that holds three versions of each key."""
        with build(changed(config, version_depth=DEPTH)) as server:
            yield server

    def launch(
        self,
        launcher: LauncherConfig,
        config: OrderedServerConfig,
        size: int,
        target: Callable[..., Any],
        *args: Any,
        leaves: bool = False,
    ) -> list[Any]:
        """Run *target* in *size* members that share the server.

        The last one waits for nobody when it is done, if *leaves* says so.
        """
        members: list[Any] = [f"member-{rank}" for rank in range(size)]
        if leaves:
            members[-1] = {"name": members[-1], "override": {"close_timeout": 0.05}}
        parts: dict[str, Any] = {"launcher": launcher, "ordered_server": config}
        raw: dict[str, Any] = {"members": members, "reducer": {"backend": "local"}}
        return pparallel.launch(pparallel.RuntimeConfig(**raw, **parts), target, args)
