"""Servers that were open when their process forked."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pparallel.interfaces.ordered_server import OrderedServer, OrderedServerConfig
from pparallel.testing.ordered_server.base import DEPTH, OrderedServerTests
from pparallel.testing.ordered_server.programs import count_up
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.suite import changed, requires
from pparallel.testing.threads import in_threads

_multi_threaded = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


class ForkTests(OrderedServerTests):
    """The child uses the server that its parent has opened."""

    @requires("forks")
    @_multi_threaded
    def test_a_fork_shares(self, server: OrderedServer) -> None:
        assert server.push("k", 1, 1, None)

        def answer() -> None:
            assert server.wait("k", 1, PATIENCE) == (2, 2)
            assert server.push("k", 3, 3, 2)

        with _fork(answer):
            assert server.push("k", 2, 2, 1)
            assert server.wait("k", 2, PATIENCE) == (3, 3)
        with _fork(lambda: server.close()):  # its own: that of the parent stays open
            pass
        assert server.push("k", 4, 4, 3)
        assert server.versions("k") == [2, 3, 4]

    @requires("forks")
    @_multi_threaded
    def test_a_fork_goes_on_without_its_parent(
        self, config: OrderedServerConfig, build: Callable[..., OrderedServer]
    ) -> None:
        def push_alone(server: OrderedServer) -> None:
            assert server.wait("go", timeout=PATIENCE) is not None
            assert server.push("k", "by the child", 2, 1)

        def fork_and_end() -> None:
            """Open a server, and leave it to a child."""
            server = build(changed(config, version_depth=DEPTH))
            server.open()
            assert server.push("k", "by the parent", 1, None)
            if os.fork():
                server.close()
            else:
                _act(lambda: push_alone(server))

        reader, writer = os.pipe()  # the child's end is known by it
        with build(changed(config, version_depth=DEPTH)) as server, open(reader, "rb") as pipe:
            try:
                with _fork(fork_and_end):
                    pass  # and the child's parent has ended
            finally:
                os.close(writer)
            assert server.push("go", 1, 1, None)
            assert server.wait("k", 1, PATIENCE) == ("by the child", 2)
            assert pipe.read() == b""

    @requires("forks")
    @_multi_threaded
    def test_a_fork_beside_threads(self, server: OrderedServer) -> None:
        rounds, done = 5, threading.Event()

        def act(thread: int) -> None:
            if thread:
                while not done.is_set():
                    count_up(server, "parent", 1)
                return
            try:
                for _ in range(rounds):
                    with _fork(lambda: count_up(server, "children", 2)):
                        pass
            finally:
                done.set()

        in_threads(3, act)
        assert server.pull("children") == (2 * rounds, 2 * rounds)


def _act(act: Callable[[], object]) -> None:
    """Do what a fork is made for, and end this process: 0 if it worked."""
    try:
        act()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the parent sees that it failed, and the reader why
        traceback.print_exc()
    finally:
        os._exit(1)


@contextmanager
def _fork(act: Callable[[], object]) -> Iterator[None]:
    """Do *act* in a fork of this process; fail if it does not end, or fails."""
    pid = os.fork()
    if not pid:
        _act(act)
    status: list[int] = []

    def has_ended() -> bool:
        ended, how = os.waitpid(pid, os.WNOHANG)
        status.extend([how] if ended else [])
        return bool(ended)

    try:
        yield
        until(has_ended, "the forked process did not end")
    finally:
        if not status:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert status == [0], "what the forked process had to do failed; see its traceback"
