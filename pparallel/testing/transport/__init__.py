"""TransportSuite: what every transport, and the RPC layer above it, promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

import pparallel
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.transport import TransportConfig
from pparallel.testing.patience import PATIENCE
from pparallel.testing.suite import Suite, changed, requires
from pparallel.testing.transport import programs
from pparallel.testing.transport.called import GATES, SEEN


class TransportSuite(Suite):
    """Subclass it, and give a fixture ``config``: the transport's config.

    Members are started by the fixture ``launcher``; override it where members of this transport
    cannot be threads.
    """

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
    ) -> list[Any]:
        """Run *target* in members described as a config describes them."""
        raw = {"members": members, "close_timeout": PATIENCE, "reducer": {"backend": "local"}}
        parts = {"launcher": launcher, "transport": config}
        try:
            return pparallel.launch(pparallel.RuntimeConfig(**raw, **parts), target, args)
        finally:
            for gate in list(GATES.values()):
                gate.set()

    def test_every_call_is_answered_once(
        self, config: TransportConfig, launcher: LauncherConfig
    ) -> None:
        self.launch(launcher, config, 3, programs.every_call_is_answered_once, 1000)
        assert not GATES

    @requires("ordered")
    def test_order(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        results = self.launch(launcher, config, 2, programs.order, 1000)
        assert results == [None, None]

    def test_what_arrives_is_the_receivers_own(
        self, config: TransportConfig, launcher: LauncherConfig
    ) -> None:
        assert self.launch(launcher, config, 3, programs.receivers_own) == [None] * 3

    def test_timeout(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        assert self.launch(launcher, config, 2, programs.timeouts) == [None] * 2

    def test_a_member_that_leaves(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        members = ["m0", "m1", {"name": "m2", "override": {"close_timeout": 0.05}}]
        lost = self.launch_named(launcher, config, members, programs.a_member_leaves)
        assert [names[:1] for names in lost] == [["m2"], ["m2"], []]

    def test_nothing_waits_after_the_end(
        self, config: TransportConfig, launcher: LauncherConfig
    ) -> None:
        with pytest.raises(KeyError, match="the first failure"):
            self.launch(launcher, config, 3, programs.end_while_others_wait)

    def test_many_threads(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        assert self.launch(launcher, config, 2, programs.many_threads, 100) == [None] * 2

    def test_remote_exceptions(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        assert self.launch(launcher, config, 2, programs.remote_exceptions) == [None] * 2

    def test_calls_in_a_circle(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        narrow = changed(config, handler_threads=1)
        assert self.launch(launcher, narrow, 2, programs.calls_in_a_circle) == [None] * 2

    def test_back_pressure(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        narrow = changed(config, max_in_flight=400_000, handler_threads=1)
        assert self.launch(launcher, narrow, 2, programs.back_pressure) == [None] * 2

    def test_references(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        assert self.launch(launcher, config, 3, programs.references) == [None] * 3

    def test_pairs_and_services(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        assert self.launch(launcher, config, 3, programs.pairs_and_services) == [None] * 3

    def test_groups(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        assert self.launch(launcher, config, 3, programs.groups) == ["pair", "pair", None]

    def test_barriers(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        assert self.launch(launcher, config, 3, programs.barriers, 20) == [None] * 3
