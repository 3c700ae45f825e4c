"""OrderedServerSuite: what every ordered server promises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, ClassVar

import pytest

import pparallel
from pparallel.errors import ClosedError
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.ordered_server import Found, OrderedServer, OrderedServerConfig
from pparallel.testing.history import check
from pparallel.testing.ordered_server.programs import (
    KEPT,
    compete,
    compete_as_member,
    count_up,
    read_what_others_pushed,
    share,
    use_after_a_member_left,
    wait_in_many_threads,
)
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.suite import Suite, changed
from pparallel.testing.threads import in_threads

DEPTH = 3


class OrderedServerSuite(Suite):
    """Subclass it, and give a fixture ``config``: the server's config.

    Members are started by the fixture ``launcher``; override it where members that use this server
    cannot be threads.
    """

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

    # -- compare and push ---------------------------------------------------------------------

    def test_a_push_needs_the_newest_version(self, server: OrderedServer) -> None:
        assert server.push("k", "one", 1, None)
        assert not server.push("k", "x", 2, None)
        assert not server.push("k", "x", 2, 7)
        assert server.pull("k") == ("one", 1)
        assert server.push("k", "two", 2, 1)
        assert not server.push("k", "x", 3, 1)
        assert server.pull("k") == ("two", 2)

    def test_a_new_key_accepts_any_previous_version(self, server: OrderedServer) -> None:
        assert server.push("none", 1, 1, None)
        assert server.push("some", 2, 9, 8)
        assert server.pull("some") == (2, 9)
        assert server.delete("some")
        assert server.push("some", 3, 1, 70)

    def test_the_same_version_overwrites(self, server: OrderedServer) -> None:
        assert server.push("k", "old", 1, None)
        assert server.push("k", "new", 1, 1)
        assert server.pull("k") == ("new", 1)
        assert server.versions("k") == [1]

    def test_an_older_held_version_becomes_the_newest(self, server: OrderedServer) -> None:
        for version in (1, 2, 3):
            assert server.push("k", version, version, version - 1)
        assert server.push("k", "again", 2, 3)
        assert server.versions("k") == [1, 3, 2]
        assert server.pull("k") == ("again", 2)
        assert server.push("k", 4, 4, 2)
        assert server.versions("k") == [3, 2, 4]

    def test_holds_the_newest_versions(self, server: OrderedServer) -> None:
        for version in range(1, DEPTH + 3):
            assert server.push("k", f"v{version}", version, version - 1)
        held = list(range(3, DEPTH + 3))
        assert server.versions("k") == held
        assert [server.pull("k", version) for version in held] == [(f"v{n}", n) for n in held]
        assert server.pull("k", 2) is None

    def test_holds_one_version_by_default(
        self, config: OrderedServerConfig, build: Callable[..., OrderedServer]
    ) -> None:
        with build(changed(config, version_depth=1)) as server:
            assert server.push("k", "a", 1, None)
            assert server.push("k", "b", 2, 1)
            assert server.versions("k") == [2]
            assert server.pull("k", 1) is None

    def test_versions_are_compared_by_value(self, server: OrderedServer) -> None:
        def one() -> Hashable:
            return tuple([1, "x"])  # noqa: C409 - a new object each time

        assert server.push("k", "a", one(), None)
        assert server.push("k", "b", "".join("two"), one())
        assert server.pull("k", one()) == ("a", (1, "x"))
        assert server.wait("k", "".join("two"), timeout=0) is None
        assert not server.push("k", "c", 3, one())

    def test_what_cannot_be_a_version_or_key(self, server: OrderedServer) -> None:
        with pytest.raises(ValueError, match="cannot be None"):
            server.push("k", 1, None, None)
        with pytest.raises(TypeError, match="must be hashable"):
            server.push("k", 1, [1], None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="must be hashable"):
            server.push(["k"], 1, 1, None)  # type: ignore[arg-type]
        assert server.keys() == []

    def test_keys_are_listed_and_deleted(self, server: OrderedServer) -> None:
        assert server.pull("a") is None
        assert server.versions("a") == []
        assert server.push("a", 1, 1, None)
        assert server.push("a", 2, 2, 1)
        assert server.push(("b", 2), 1, 1, None)
        assert sorted(server.keys(), key=str) == [("b", 2), "a"]
        assert server.delete("a")
        assert not server.delete("a")
        assert server.keys() == [("b", 2)]
        assert server.versions("a") == []
        assert [server.pull("a", version) for version in (None, 1, 2)] == [None] * 3
        assert server.wait("a", timeout=0) is None

    # -- values -------------------------------------------------------------------------------

    def test_what_is_stored_is_a_snapshot(self, server: OrderedServer) -> None:
        import torch

        value: dict[str, Any] = {"t": torch.zeros(5000), "l": [1]}
        assert server.push("k", value, 1, None)
        value["t"] += 1
        value["l"] += [2]
        found = server.pull("k")
        assert found is not None
        assert found[0]["t"].sum() == 0
        assert found[0]["l"] == [1]

    def test_what_is_pulled_is_the_callers_own(self, server: OrderedServer) -> None:
        import torch

        assert server.push("k", torch.zeros(5000), 1, None)
        first, second = server.pull("k"), server.wait("k", timeout=PATIENCE)
        assert first is not None
        assert second is not None
        first[0].add_(1)
        again = server.pull("k")
        assert again is not None
        assert second[0].sum() == 0
        assert again[0].sum() == 0

    def test_pulls_into(self, server: OrderedServer) -> None:
        import numpy
        import torch

        value = {"w": torch.arange(6.0).view(2, 3), "l": [numpy.arange(3), torch.ones(2).half()]}
        assert server.push("k", value, 1, None)
        weight = torch.zeros(3, 2, requires_grad=True)
        into = {"w": weight.detach().T, "l": [numpy.zeros(3, int), torch.zeros(2).half()]}
        found = server.pull("k", into=into)
        assert found is not None
        assert found[0] is into
        assert found[1] == 1
        assert weight.detach().T.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert into["l"][0].tolist() == [0, 1, 2]
        assert into["l"][1].tolist() == [1, 1]
        assert server.pull("absent", into=into) is None

    def test_into_must_fit(self, server: OrderedServer) -> None:
        import torch

        value = {"a": torch.ones(2), "b": [torch.ones(2, 2)]}
        assert server.push("k", value, 1, None)
        refused: dict[str, dict[str, Any]] = {
            r"value\['b'\]\[0\] has shape \(2, 2\)": {"a": 2, "b": [torch.zeros(4)]},
            r"value\['b'\]\[0\] has dtype": {"a": 2, "b": [torch.zeros(2, 2).int()]},
            r"value\['b'\] has 1 entries": {"a": 2, "b": []},
            r"value\['b'\]\[0\] is of type": {"a": 2, "b": [{"c": 1}]},
            r"value\['c'\] is not in": {"a": 2, "b": [torch.zeros(2, 2)], "c": torch.zeros(1)},
            r"value\['b'\] was pushed": {"a": 2},
            r"value\['b'\]\[0\] cannot be copied": {"a": 2, "b": [None]},
        }
        for message, into in refused.items():
            target = torch.zeros(2)
            with pytest.raises(ValueError, match=message):
                server.pull("k", into={**into, "a": target})
            assert target.sum() == 0, "something was copied before the misfit was seen"

    # -- waiting ------------------------------------------------------------------------------

    def test_wait_returns_what_is_new(self, server: OrderedServer) -> None:
        assert server.wait("k", timeout=0) is None
        assert server.push("k", "a", 1, None)
        assert server.wait("k", timeout=0) == ("a", 1)
        assert server.wait("k", 7) == ("a", 1)
        assert server.wait("k", 1, timeout=0) is None
        assert server.wait("k", 1, timeout=0.01) is None

    def test_a_waiter_sees_no_other_key_and_no_overwrite(self, server: OrderedServer) -> None:
        assert server.push("k", "a", 1, None)

        def act(thread: int) -> Found | None:
            if thread == 0:
                return server.wait("k", 1, PATIENCE)
            steps: list[Callable[[], bool]] = [
                lambda: server.push("other", "x", 2, None),
                lambda: server.push("k", "b", 1, 1),
                lambda: server.delete("k"),
                lambda: server.push("k", "c", 1, None),
                lambda: server.push("k", "d", 2, 1),
            ]
            for step in steps:
                threading.Event().wait(0.05)  # for the other to wait, and to wake if it would
                assert step()
            return None

        assert in_threads(2, act)[0] == ("d", 2)

    def test_one_push_wakes_every_waiter(self, server: OrderedServer) -> None:
        assert server.push("k", "a", 1, None)
        pusher = threading.Timer(0.1, server.push, args=("k", "b", 2, 1))
        pusher.start()
        results = in_threads(20, lambda _: server.wait("k", 1, PATIENCE))
        pusher.join()
        assert results == [("b", 2)] * 20

    def test_one_push_wakes_the_waiters_of_all_members(
        self, config: OrderedServerConfig, launcher: LauncherConfig
    ) -> None:
        results = self.launch(launcher, config, 3, wait_in_many_threads, 10)
        assert results == [[("now", 1)] * 10] * 3

    def test_nobody_waits_after_the_end(
        self, config: OrderedServerConfig, build: Callable[..., OrderedServer]
    ) -> None:
        server = build(config)

        ended: list[BaseException] = []

        def wait() -> None:
            try:
                server.wait("k")
            except ClosedError as error:
                ended.append(error)

        waiters = [threading.Thread(target=wait, daemon=True) for _ in range(3)]
        with server:
            assert server.push("k", 1, 1, None)
            assert server.delete("k")
            for each in waiters:
                each.start()
            threading.Event().wait(0.1)  # for them to begin waiting
        until(lambda: len(ended) == 3, "the waiters of a server that closed did not wake")
        for use in (
            lambda: server.push("k", 1, 1, None),
            lambda: server.pull("k"),
            lambda: server.wait("k", timeout=0),
            lambda: server.versions("k"),
            server.keys,
            lambda: server.delete("k"),
        ):
            with pytest.raises(ClosedError):
                use()
        server.close()

    # -- order --------------------------------------------------------------------------------

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
