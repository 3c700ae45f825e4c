"""Who waits for what is new."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from pparallel.errors import ClosedError
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.ordered_server import Found, OrderedServer, OrderedServerConfig
from pparallel.testing.ordered_server.base import OrderedServerTests
from pparallel.testing.ordered_server.programs import (
    wait_in_many_threads,
)
from pparallel.testing.patience import AGES, PATIENCE, until
from pparallel.testing.threads import in_threads


class WaitTests(OrderedServerTests):
    """Waiters, and what wakes them."""

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

    def test_a_time_limit_may_be_long(self, server: OrderedServer) -> None:
        pusher = threading.Timer(0.1, server.push, args=("k", "a", 1, None))
        pusher.start()
        assert server.wait("k", timeout=AGES) == ("a", 1)
        pusher.join()

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

    def test_a_wait_that_begins_as_the_server_closes_ends(
        self, config: OrderedServerConfig, build: Callable[..., OrderedServer]
    ) -> None:
        raised: list[BaseException] = []

        def wait(server: OrderedServer) -> None:
            with suppress(ClosedError):
                server.wait("k")
                raised.append(AssertionError("nothing was pushed, and wait() returned"))

        for _ in range(5):
            with build(config) as server:
                waiter = threading.Thread(target=wait, args=(server,), daemon=True)
                waiter.start()  # it begins to wait just before the server closes, or just after
            waiter.join(PATIENCE)
            assert not waiter.is_alive(), "a wait that began as the server closed did not end"
        assert not raised
