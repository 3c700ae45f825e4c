"""Threads and members that use one server at once."""

from __future__ import annotations

import threading
from functools import partial

from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.ordered_server import OrderedServer, OrderedServerConfig
from pparallel.testing.history import check
from pparallel.testing.ordered_server.base import DEPTH, OrderedServerTests
from pparallel.testing.ordered_server.programs import (
    KEPT,
    compete,
    compete_as_member,
    count_up,
    overwrite,
    overwrite_and_read,
    read_what_is_overwritten,
    read_what_others_pushed,
    share,
    use_after_a_member_left,
)
from pparallel.testing.patience import PATIENCE
from pparallel.testing.suite import changed
from pparallel.testing.threads import in_threads


class OrderTests(OrderedServerTests):
    """One order, which all see."""

    def test_threads_see_one_order(self, server: OrderedServer) -> None:
        in_threads(4, lambda _: count_up(server, "number", 25))
        assert server.pull("number") == (100, 100)
        histories = in_threads(4, lambda n: compete(server, f"t{n}", 25))
        check((each for history in histories for each in history), DEPTH)

    def test_members_see_one_order(
        self, config: OrderedServerConfig, launcher: LauncherConfig
    ) -> None:
        deep = changed(config, version_depth=DEPTH)
        histories = self.launch(launcher, deep, 3, compete_as_member, 25)
        check((each for history in histories for each in history), DEPTH)

    def test_a_push_is_seen_by_all_members_at_once(
        self, config: OrderedServerConfig, launcher: LauncherConfig
    ) -> None:
        deep = changed(config, version_depth=DEPTH)
        histories = self.launch(launcher, deep, 3, read_what_others_pushed, 15)
        check((each for history in histories for each in history), DEPTH)

    def test_members_share(self, config: OrderedServerConfig, launcher: LauncherConfig) -> None:
        results = self.launch(launcher, config, 3, share)
        assert results == [[n + 1.0, n + 2.0, n + 3.0] for n in range(3)]

    def test_after_a_member_left(
        self, config: OrderedServerConfig, launcher: LauncherConfig
    ) -> None:
        deep, use = changed(config, version_depth=DEPTH), use_after_a_member_left
        for found in self.launch(launcher, deep, 3, use, leaves=True)[:-1]:
            for name, outcome in found.items():
                assert outcome in (KEPT[name], "PeerLostError"), name

    def test_no_thread_sees_half_a_push(self, server: OrderedServer) -> None:
        ready = partial(threading.Barrier(4).wait, PATIENCE)
        acts = [overwrite, *[read_what_is_overwritten] * 3]
        in_threads(4, lambda number: acts[number](server, ready))

    def test_no_member_sees_half_a_push(
        self, config: OrderedServerConfig, launcher: LauncherConfig
    ) -> None:
        assert self.launch(launcher, config, 3, overwrite_and_read) == [True] * 3
