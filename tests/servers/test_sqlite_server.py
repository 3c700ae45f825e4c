"""The ordered server in a file, in one process."""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, ClassVar

import preloads
import pytest
from sqlite_programs import server_at
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.ordered_server import OrderedServer, OrderedServerConfig
from pparallel.testing import OrderedServerSuite
from pparallel.testing.ordered_server.forks import ForkTests
from pparallel.testing.ordered_server.order import OrderTests
from pparallel.testing.ordered_server.values import ValueTests
from pparallel.testing.ordered_server.waiting import WaitTests
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel_process import ProcessLauncherConfig
from pparallel_serializers import PickleSerializerConfig, SafeSerializerConfig
from pparallel_servers import SqliteOrderedServerConfig
from pparallel_servers.sqlite.watch import Watch

if TYPE_CHECKING:
    from pparallel import Runtime


class TestSqliteOrderedServer(OrderedServerSuite):
    sequences: ClassVar[int] = 15

    @pytest.fixture
    @override
    def config(self, tmp_path: Path) -> OrderedServerConfig:
        return SqliteOrderedServerConfig(path=tmp_path / "values.db")


class TestSqliteWithPickles(ValueTests, ForkTests):
    @pytest.fixture
    @override
    def config(self, tmp_path: Path) -> OrderedServerConfig:
        pickles = PickleSerializerConfig()
        return SqliteOrderedServerConfig(path=tmp_path / "v.db", serializer=pickles, trusted=True)


class TestSqliteAmongProcesses(OrderTests, ForkTests):
    """The laws of what several members see, which are processes."""

    test_one_push_wakes_the_waiters_of_all_members = (
        WaitTests.test_one_push_wakes_the_waiters_of_all_members
    )

    @pytest.fixture
    @override
    def config(self, tmp_path: Path) -> OrderedServerConfig:
        return SqliteOrderedServerConfig(path=tmp_path / "values.db")

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=preloads.MEMBERS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "values.db"


# -- waiting ----------------------------------------------------------------------------------


def test_servers_of_one_process_wake_one_another(path: Path) -> None:
    with server_at(path, poll=1000) as one, server_at(path, poll=1000) as other:
        pusher = threading.Timer(0.1, one.push, args=("k", "pushed", 1, None))
        pusher.start()
        assert in_threads(5, lambda _: other.wait("k", timeout=PATIENCE)) == [("pushed", 1)] * 5
        pusher.join()


def test_one_thread_looks_for_all_and_seldom() -> None:
    """To wait costs next to nothing: what is counted are the looks."""
    looks: list[int] = []

    def look() -> bool:
        looks.append(threading.get_ident())
        return False

    watch = Watch(look, 0.01)
    began = monotonic()
    in_threads(20, lambda _: watch.wait(0, began + 0.5))
    quick = 10  # at first it looks more often
    assert len(looks) <= (monotonic() - began) / 0.01 + quick
    assert looks


def test_another_takes_over_when_who_looks_is_done() -> None:
    found = threading.Event()
    watch = Watch(found.is_set, 0.001)
    with_time = threading.Thread(target=watch.wait, args=(0, monotonic() + PATIENCE))
    in_threads(2, lambda n: watch.wait(0, monotonic() + 0.02) if n else with_time.start())
    assert with_time.is_alive()
    found.set()
    with_time.join(PATIENCE)
    assert not with_time.is_alive()


def test_the_others_go_on_when_one_server_closes(path: Path) -> None:
    ended: list[object] = []

    def wait(server: OrderedServer) -> None:
        try:
            ended.append(server.wait("k"))
        except ClosedError:
            ended.append("closed")

    with server_at(path) as one:
        with server_at(path) as other:
            waiters = [threading.Thread(target=wait, args=(each,)) for each in (one, other)]
            for each in waiters:
                each.start()
            assert other.wait("k", timeout=0.05) is None
        until(lambda: ended == ["closed"], "the waiter of the server that closed did not wake")
        assert one.push("k", 1, 1, None)
        for each in waiters:
            each.join()
    assert ended == ["closed", (1, 1)]


def wait_for_ever(rt: Runtime) -> None:
    if rt.rank == 1:
        rt.ordered_server.wait("never", timeout=0.05)
        message = "the first failure"
        raise KeyError(message)
    rt.ordered_server.wait("never")


@pytest.mark.parametrize("launcher", ["thread", "process"])
def test_waiters_wake_when_the_job_ends(path: Path, launcher: str) -> None:
    config = pparallel.RuntimeConfig(
        members=3,
        launcher={"backend": launcher},
        ordered_server=SqliteOrderedServerConfig(path=path),
        reducer={"backend": "local"},
    )
    with pytest.raises(KeyError, match="the first failure"):
        pparallel.launch(config, wait_for_ever)


# -- configs and life -------------------------------------------------------------------------


def test_the_default_serializer_is_the_safe_one_however_it_is_configured(path: Path) -> None:
    loaded = pparallel.load(OrderedServerConfig, {"backend": "sqlite", "path": str(path)})
    assert isinstance(loaded, SqliteOrderedServerConfig)
    assert loaded.serializer == SafeSerializerConfig()
    for config in (loaded, SqliteOrderedServerConfig(path=path)):
        with pparallel.build(config) as server:
            server.keys()
    with pparallel.build({"ordered_server": {"backend": "sqlite", "path": str(path)}}) as rt:
        assert rt.ordered_server.keys() == []
        assert rt.serializer.runs_code, "the runtime's own is another"


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    names = ["a b.db", "a?mode=memory", "a#b%41.db", "file:x", ":memory:"]
    for name in names:
        for version in (1, 2):
            with server_at(tmp_path / name) as server:
                assert server.push("k", name, version, version - 1)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(names)


def test_relative_paths_home_and_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "link.db").symlink_to("values.db")
    with server_at("values.db") as server, server_at("~/link.db") as other:
        assert server.push("k", 1, 1, None)
        assert other.pull("k") == (1, 1)
    assert (tmp_path / "link.db").is_symlink()


def test_what_is_under_way_ends_before_a_server_closes(path: Path) -> None:
    outcomes: list[object] = []

    def push(server: OrderedServer) -> None:
        version = 0
        try:
            while server.push("k", bytes(100_000), version + 1, version):
                version += 1
        except ClosedError:
            outcomes.append(version)

    with server_at(path) as server:
        pusher = threading.Thread(target=push, args=(server,))
        pusher.start()
        assert server.wait("k", 1, PATIENCE) is not None
    pusher.join()
    with server_at(path) as server:
        assert server.versions("k") == outcomes
