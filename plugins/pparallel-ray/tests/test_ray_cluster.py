from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from time import monotonic

import psutil
import pytest
import ray
from ray._private import ray_constants

import pparallel
import ray_cluster_programs as programs
import ray_rank_programs
from pparallel.errors import AuthenticationError, ClosedError, ConfigError
from pparallel.testing.patience import until
from pparallel.testing.threads import in_threads
from pparallel_ray.cluster import Cluster, RayConnection
from pparallel_ray.cluster.own import on_loopback

SMALL = RayConnection(num_cpus=2, object_store_memory=100 << 20)


def run(*arguments: str, **environment: str | None) -> str:
    """Run a program in a process of its own; return what it printed."""
    given = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), **environment}
    env = {name: value for name, value in given.items() if value is not None}
    command = [sys.executable, "-W", "error", programs.__file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


# -- sharing ---------------------------------------------------------------------------------------


def test_the_last_to_let_go_disconnects(unconnected: str) -> None:
    first, second = (Cluster(RayConnection(address=unconnected)) for _ in range(2))
    with first, second:
        assert first.address == second.address == unconnected
        first.close()
        assert ray.is_initialized()
        first.close()
        assert second.address == unconnected
    assert not ray.is_initialized()
    with pytest.raises(ClosedError, match="the connection to Ray is not open"):
        _ = second.address


def test_threads_share_one_connection(unconnected: str) -> None:
    ready = threading.Barrier(4)

    def use(_: int) -> str:
        ready.wait()
        with Cluster(RayConnection(address=unconnected)) as cluster:
            found = cluster.address
            ready.wait()
        return found

    assert in_threads(4, use) == [unconnected] * 4


def test_a_connection_of_the_programs_own_is_left(unconnected: str) -> None:
    with on_loopback():
        ray.init(unconnected, log_to_driver=False, logging_level=logging.ERROR)
    try:
        with Cluster(RayConnection()) as cluster:
            assert cluster.address == unconnected
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_a_connection_that_the_program_closed_is_made_again(
    unconnected: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (Cluster(RayConnection(address=unconnected)) for _ in range(2))
    with first:
        ray.shutdown()
        with second:
            assert "the connection to Ray was closed while 1 used it" in caplog.text
            first.close()
            assert second.address == unconnected


def test_ray_client_is_refused(unconnected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(ConfigError, match=r"RAY_ADDRESS: cluster.address: Ray Client is not"):
        Cluster(RayConnection()).open()


def test_what_the_program_had_set_is_left(unconnected: str) -> None:
    before = signal.getsignal(signal.SIGTERM), logging.getLogger("ray").level
    with Cluster(RayConnection(address=unconnected)):
        assert (signal.getsignal(signal.SIGTERM), logging.getLogger("ray").level) == before


def test_one_cluster_at_a_time(running_cluster: RayConnection) -> None:
    with pytest.raises(ConfigError, match=r"cluster.address: this process is connected to .* and"):
        Cluster(RayConnection(address="127.0.0.1:1")).open()


def test_ray_address_is_followed(unconnected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", unconnected)
    with Cluster(SMALL) as cluster:
        assert cluster.address == unconnected


class TestOurOwn:
    """Clusters that pparallel starts, and who is let in."""

    def test_our_own_asks_for_a_token_and_listens_on_the_loopback_only(self) -> None:
        printed = run("own", RAY_AUTH_MODE=None, RAY_AUTH_TOKEN=None, RAY_ADDRESS=None)
        assert printed.splitlines() == [
            "outlives a thread: True",
            "listens on 127.0.0.1",
            "a stranger: AuthenticationError",
            "left: no processes, no folder, no variables",
        ]

    def test_our_own_ends_with_a_program_that_is_killed(self, tmp_path: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        command = [sys.executable, ray_rank_programs.__file__, str(tmp_path)]
        program = subprocess.Popen(command, env=environment)
        try:
            ranks = ray_rank_programs.started(tmp_path, range(2))
            pids = [each.pid for each in psutil.Process(program.pid).children(recursive=True)]
            folders = Path(tempfile.gettempdir()).glob("pparallel-ray-*/session_*")
            (folder,) = (each.parent for each in folders if each.name.endswith(f"_{program.pid}"))
        finally:
            program.kill()
            program.wait()
        assert ray_rank_programs.gone([*pids, *(pid for each in ranks.values() for pid in each)])
        until(lambda: not folder.exists(), f"{folder} stays")

    def test_a_wrong_token(self, unconnected: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
        monkeypatch.setattr(ray_constants, "NUM_REDIS_GET_RETRIES", 2)  # each takes a second
        with pytest.raises((AuthenticationError, ConfigError), match="RAY_AUTH_TOKEN"):
            Cluster(RayConnection(address=unconnected)).open()
        monkeypatch.undo()
        with Cluster(RayConnection(address=unconnected)) as cluster:
            assert cluster.address == unconnected


# -- refusals --------------------------------------------------------------------------------------


def test_nothing_listens(unconnected: str) -> None:
    before = monotonic()
    with pytest.raises(ConfigError, match=r"at 127.0.0.1:1 cannot be used.*'ray status") as caught:
        Cluster(RayConnection(address="127.0.0.1:1")).open()
    assert monotonic() - before < 20, "Ray itself would try for a minute"
    assert "leave 'address' out" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"address": "ray://head:10001"}, r"Ray Client \(ray://head:10001\) is not supported"),
        ({"address": "auto", "num_cpus": 2}, "'num_cpus' is for a cluster that this program"),
        ({"object_store_memory": 1}, "object_store_memory"),
        ({"adress": "auto"}, "Did you mean 'address'"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        pparallel.load({"pool": {"backend": "ray", "cluster": options}})


def test_importing_the_plugin_imports_no_ray() -> None:
    assert run("import") == "False\n"
