"""What the parts of the transport's suite share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

import pparallel
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.transport import TransportConfig
from pparallel.testing.patience import PATIENCE
from pparallel.testing.suite import Suite, changed
from pparallel.testing.transport.called import GATES, SEEN


class TransportTests(Suite):
    """Starts members that are connected by the transport under test."""

    interface: ClassVar[str] = "transport"

    @pytest.fixture(autouse=True)
    def _forget(self) -> None:
        SEEN.clear()
        GATES.clear()

    def launch(
        self,
        launcher: LauncherConfig,
        config: TransportConfig,
        size: int,
        target: Callable[..., Any],
        *args: Any,
    ) -> list[Any]:
        """Run *target* in *size* members connected by the transport."""
        return self.launch_named(
            launcher, config, [f"m{rank}" for rank in range(size)], target, args
        )

    def launch_named(
        self,
        launcher: LauncherConfig,
        config: TransportConfig,
        members: list[Any],
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        serializer: str = "dill",
    ) -> list[Any]:
        """Run *target* in members described as a config describes them."""
        raw: dict[str, Any] = {
            "members": members,
            "serializer": {"backend": serializer},
            "close_timeout": PATIENCE,
            "reducer": {"backend": "local"},
        }
        # A request that a broken transport loses must fail before the test's own limit.
        parts = {"launcher": launcher, "transport": changed(config, timeout=PATIENCE)}
        try:
            return pparallel.launch(pparallel.RuntimeConfig(**raw, **parts), target, args)
        finally:
            for gate in list(GATES.values()):
                gate.set()
            SEEN.clear()  # what arrived may lie in memory that lives as long as it does
