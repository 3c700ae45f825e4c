"""A server that nobody tells of what is new: when its waiters look, and how they end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest
from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.ordered_server import Found
from pparallel.runtime.polling_server import PollingOrderedServer
from pparallel.runtime.stopping import StopSignal, running_under
from pparallel.testing.patience import PATIENCE, until


class NoteServer(PollingOrderedServer):
    """Holds one key, and counts how often it is read."""

    def __init__(self, pause: float) -> None:
        super().__init__(pause)
        self.held: dict[Hashable, Any] = {}
        self.looks = self.fetches = 0

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        self.held[version] = value
        return True

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        self.fetches += 1
        if version is None:
            version = next(reversed(self.held), None)
        return (self.held[version], version) if version in self.held else None

    @override
    def versions(self, key: Hashable) -> list[Any]:
        self.check_open()
        self.looks += 1
        return list(self.held)

    @override
    def keys(self) -> list[Any]:
        return []

    @override
    def delete(self, key: Hashable) -> bool:
        return False


@pytest.fixture
def server() -> Iterator[NoteServer]:
    with NoteServer(0.001) as server:
        yield server


def in_a_thread(server: PollingOrderedServer, *args: Any) -> tuple[threading.Thread, list[Any]]:
    """Wait in a thread; return it, and a list of what came of it."""
    ended: list[Any] = []

    def wait() -> None:
        try:
            ended.append(server.wait("k", *args))
        except ClosedError as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, ended


def test_a_value_is_fetched_only_when_it_is_new(server: NoteServer) -> None:
    server.push("k", "old", 1, None)
    thread, ended = in_a_thread(server, 1, PATIENCE)
    until(lambda: server.looks > 3, "nobody looks")
    assert server.fetches == 0
    server.push("k", "new", 2, 1)
    thread.join(PATIENCE)
    assert ended == [("new", 2)]
    assert server.fetches == 1


def test_without_time_it_looks_once(server: NoteServer) -> None:
    for timeout in (0, -1):
        server.looks = 0
        assert server.wait("k", None, timeout) is None
        assert server.looks == 1


def test_what_is_new_is_found_though_others_push_meanwhile(server: NoteServer) -> None:
    look = server.versions

    def versions(key: Hashable) -> list[Any]:
        seen = look(key)
        server.held = {version + 5: f"v{version + 5}" for version in seen}
        return seen

    server.held = {1: "v1", 2: "v2"}
    server.versions = versions  # type: ignore[method-assign]
    assert server.wait("k", 1, 0) == ("v7", 7)


def test_closing_ends_the_wait(server: NoteServer) -> None:
    thread, ended = in_a_thread(server)
    until(lambda: server.looks > 0, "nobody looks")
    server.close()
    thread.join(PATIENCE)
    assert [type(each) for each in ended] == [ClosedError]
    assert not ended[0].consequence
    with pytest.raises(ClosedError, match="is not open"):
        server.wait("k", None, 0)


def test_the_end_of_the_job_ends_the_wait(server: NoteServer) -> None:
    told = StopSignal()
    stop = threading.Timer(0.05, told.set)
    with running_under(told):
        stop.start()
        with pytest.raises(ClosedError, match="the job ends") as caught:
            server.wait("k")
    stop.join()
    assert caught.value.consequence


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_fork_waits_and_closes_whatever_threads_of_its_parent_did(server: NoteServer) -> None:
    thread, ended = in_a_thread(server, None, PATIENCE)
    with vars(server._ended)["_cond"]:  # as a thread that begins to wait does
        child = os.fork()
        if not child:
            _end_with(lambda: _use_and_close(server))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    server.push("k", "here", 1, None)
    thread.join(PATIENCE)
    assert ended == [("here", 1)]


def _use_and_close(server: NoteServer) -> None:
    assert server.wait("k", None, 0.01) is None
    server.close()
    with pytest.raises(ClosedError, match="is not open"):
        server.wait("k")


def _end_with(act: Callable[[], object]) -> None:
    """End this process, with 0 if *act* returns; one that hangs is killed."""
    signal.alarm(int(PATIENCE))
    code = 1
    try:
        act()
        code = 0
    finally:
        os._exit(code)


def test_what_was_never_open() -> None:
    with pytest.raises(ClosedError, match="is not open"):
        NoteServer(0.001).wait("k", None, 0)
