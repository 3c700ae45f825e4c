"""The ordered server in a file, among processes that compete, fork and are killed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import preloads
import pytest
from process_children import line
from sqlite_children import assert_whole, running, survives_a_kill
from sqlite_programs import server_at

import pparallel
from pparallel.interfaces.ordered_server import OrderedServer
from pparallel.testing.patience import PATIENCE, until

if TYPE_CHECKING:
    from pparallel import Runtime


# -- kills ------------------------------------------------------------------------------------


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    """One pusher after another is killed, and the next goes on from there."""
    newest = 0
    for pushes in (1, 3, 5):
        newest = survives_a_kill(tmp_path / "values.db", newest, pushes)


def test_who_is_killed_in_a_push_locks_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "values.db"
    with server_at(path, timeout=PATIENCE) as server, ExitStack() as stack:
        assert server.push("k", "kept", 1, None)
        process, reader = stack.enter_context(running("push_slowly", str(path)))
        assert line(reader) == "inside"
        assert server.pull("k") == ("kept", 1), "readers wait for nobody"
        killer = threading.Timer(0.1, process.signal, args=(9,))
        killer.start()
        assert server.push("k", "next", 2, 1)
        killer.join()
        assert server.versions("k") == [2]


def test_who_stays_in_a_push_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "values.db"
    with server_at(path, timeout=0.05) as server:
        assert server.push("k", "kept", 1, None)
        with running("push_slowly", str(path)) as (_, reader):
            assert line(reader) == "inside"
            with pytest.raises(TimeoutError, match=r"locked for 0\.05 s \(the option 'timeout'\)"):
                server.push("k", "next", 2, 1)
            assert server.pull("k") == ("kept", 1)
        assert server.push("k", "next", 2, 1)


# -- several at once --------------------------------------------------------------------------


def test_processes_that_make_one_file_at_once_lose_no_update(tmp_path: Path) -> None:
    path, times = tmp_path / "values.db", 40
    with ExitStack() as stack:
        said = [stack.enter_context(running("count", str(path), times))[1] for _ in range(3)]
        assert [line(each) for each in said] == ["done"] * 3
    with server_at(path) as server:
        assert server.pull("number") == (3 * times, 3 * times)
    assert_whole(path)


def test_a_push_of_another_process_wakes_who_waits(tmp_path: Path) -> None:
    path = tmp_path / "values.db"
    with server_at(path) as server, running("answer", str(path)) as (process, reader):
        assert line(reader) == "here"
        for n in range(1, 20):
            assert server.push("question", n, n, n - 1 or None)
            assert server.wait("answer", n - 1 or None, PATIENCE) == (n, n)
        assert server.push("question", "end", 20, 19)
        until(lambda: process.ended() is not None, "it did not end")


def use_the_file(rt: Runtime, path: str) -> list[object]:
    server = rt["kept"]
    assert rt.rank != 0 or server.push("k", rt.name, 1, None)
    found = server.wait("k", timeout=PATIENCE)
    rt.group().barrier(PATIENCE)
    return [found, os.getpid()]


def test_members_of_a_job_share_it_as_a_further_component(tmp_path: Path) -> None:
    path = tmp_path / "values.db"
    kept = {"interface": "ordered_server", "backend": "sqlite", "path": str(path)}
    config = {
        "members": 3,
        "launcher": {"backend": "process", "preload": preloads.MEMBERS},
        "reducer": {"backend": "local"},
        "extra": {"kept": kept},
    }
    told = pparallel.launch(config, use_the_file, (str(path),))
    assert [found for found, _ in told] == [("member-0", 1)] * 3
    assert len({pid for _, pid in told}) == 3


# -- forks ------------------------------------------------------------------------------------


def test_a_fork_goes_on_when_its_parent_is_gone(tmp_path: Path) -> None:
    path, said, go = (tmp_path / each for each in ("values.db", "said", "go"))
    os.mkfifo(go)
    with running("fork_and_end", str(path), str(said), str(go)) as (parent, reader):
        assert line(reader) == str(parent.pid)
        assert parent.ended(PATIENCE) is not None
        until(lambda: said.exists() and said.read_text() == "2", "the child did not push")
        with server_at(path) as server:  # and with its end, the log is done with if nobody uses it
            assert server.pull("k") == ("by the child", 2)
        with go.open("w"):
            pass
        until(lambda: said.read_text() == "3", "the child did not push again")
        with server_at(path) as server:
            assert server.pull("k") == ("by the child alone", 3)
    assert_whole(path)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_in_this_process_needs_nothing_from_its_parent(tmp_path: Path) -> None:
    with server_at(tmp_path / "values.db") as server:
        assert server.push("k", 1, 1, None)
        assert in_a_fork(lambda: server.push("k", 2, 2, 1))
        assert server.pull("k") == (2, 2)
        assert in_a_fork(lambda: server.wait("k", 1, PATIENCE) == (2, 2))
        assert server.push("k", 3, 3, 2)


def in_a_fork(act: Callable[[], object]) -> bool:
    """Return whether *act* returns true in a fork of this process."""
    pid = os.fork()
    if not pid:
        try:
            os._exit(0 if act() else 1)
        finally:
            os._exit(2)
    return os.waitpid(pid, 0)[1] == 0


def versions_of(server: OrderedServer, keys: Sequence[str]) -> list[object]:
    return [server.versions(key) for key in keys]


def test_a_job_goes_on_from_the_stored_version(tmp_path: Path) -> None:
    path = tmp_path / "values.db"
    with server_at(path, version_depth=3) as server:
        for version in range(1, 6):
            assert server.push("a", {"step": version}, version, version - 1)
        assert server.push("b", "x", "one", None)
    with server_at(path, version_depth=2) as server:
        assert versions_of(server, ["a", "b", "c"]) == [[4, 5], ["one"], []]
        assert server.pull("a") == ({"step": 5}, 5)
        assert server.pull("a", 3) is None, "two are held from now on"
        assert server.push("a", {"step": 6}, 6, 5)
    with server_at(path, version_depth=9) as server:
        assert server.versions("a") == [5, 6]
