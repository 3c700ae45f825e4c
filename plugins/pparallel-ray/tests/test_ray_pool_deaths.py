"""What becomes of the tasks of a pool on Ray when workers, their host or the cluster are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from pparallel import build
from pparallel.errors import AuthenticationError, PparallelError, WorkerLostError
from pparallel.interfaces.pool import Pool
from pparallel.testing.gate import Gate
from pparallel.testing.patience import PATIENCE, until, until_gone
from pparallel.testing.pool.tasks import die_at_first, die_on_some, double, note_and_wait, noted
from pparallel_ray import RayPoolConfig
from pparallel_ray.cluster import RayConnection
from pparallel_ray.pool.wire.admission import CONTROL, connect
from ray_clusters import CPUS

PRELOAD = ("numpy", "torch", "pparallel.testing.pool.tasks")
HERE = Path(__file__).parent


@pytest.fixture
def make(running_cluster: RayConnection) -> Callable[..., Pool]:
    def make(**options: object) -> Pool:
        config = RayPoolConfig.model_validate(
            {"cluster": running_cluster, "preload": PRELOAD, **options}
        )
        pool: Pool = build(config)
        return pool

    return make


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with contextlib.closing(Gate(tmp_path)) as gate:
        yield gate


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


def _host_of(worker: int) -> psutil.Process:
    """Return the actor that looks after a worker."""
    return next(each for each in psutil.Process(worker).parents() if "ray::" in each.name())


def test_a_worker_that_is_killed_during_a_map_is_reported(
    make: Callable[..., Pool], notes: Path, gate: Gate
) -> None:
    with make(size=2) as pool:
        mapped = pool.map_async(partial(_note_and_wait_on, 3, notes, gate), range(20))
        gate.arrived()
        pid = int(noted(notes)[0])
        os.kill(pid, signal.SIGKILL)
        error = mapped.exception(PATIENCE)
        assert isinstance(error, WorkerLostError)
        assert (error.pid, error.exitcode) == (pid, -signal.SIGKILL)
        assert pool.map(double, range(10)) == list(range(0, 20, 2))
        gate.open()


def test_a_worker_that_is_killed_during_a_map_is_replaced(
    make: Callable[..., Pool], notes: Path
) -> None:
    with make(size=2, retries=1) as pool:
        assert pool.map(partial(die_at_first, notes, 1), range(6)) == list(range(6))
    assert all(count >= 2 for count in Counter(noted(notes)).values())


@pytest.mark.parametrize("retries", [0, 1])
def test_a_host_that_is_killed(
    make: Callable[..., Pool], notes: Path, gate: Gate, retries: int
) -> None:
    with make(size=2, retries=retries) as pool:
        running = pool.submit(note_and_wait, notes, gate)
        queued = pool.map_async(double, range(200))
        gate.arrived()
        pid = int(noted(notes)[0])
        _host_of(pid).kill()
        until_gone(pid)
        gate.open()
        if retries:
            assert running.exception(PATIENCE) is None
            assert queued.get(PATIENCE) == list(range(0, 400, 2))
        else:
            error = running.exception(PATIENCE)
            assert isinstance(error, WorkerLostError)
            assert error.pid == pid
            assert "actor is gone" in str(error)
            queued.wait(PATIENCE)
        assert pool.map(double, range(10)) == list(range(0, 20, 2))


def test_workers_end_with_the_pool(make: Callable[..., Pool]) -> None:
    with make(size=2) as pool:
        pids = set(pool.map(_pid, range(50)))
    until(lambda: not any(map(psutil.pid_exists, pids)), "workers outlive their pool")


def test_a_pool_for_which_there_is_no_room(make: Callable[..., Pool]) -> None:
    with make(size=CPUS + 1, start_timeout=1.0) as pool:
        with pytest.raises(PparallelError, match=rf"no room .* of {CPUS} are free"):
            pool.map(double, range(10))
        with pytest.raises(PparallelError, match="num_cpus"):
            pool.apply(double, (1,))


def test_a_stranger_is_not_let_in(make: Callable[..., Pool]) -> None:
    with make(size=1) as pool:
        host = _host_of(pool.apply(os.getpid))
        addresses = [each.laddr for each in host.net_connections() if each.status == "LISTEN"]
        refused = 0
        for address in addresses:
            with pytest.raises((AuthenticationError, OSError)) as caught:
                connect((address.ip, address.port), b"no key" * 6, CONTROL, b"somebody" * 2)
            refused += isinstance(caught.value, AuthenticationError)
            with socket.create_connection((address.ip, address.port)):
                pass  # one that says nothing holds nobody up
        assert refused >= 1
        assert pool.map(double, range(10)) == list(range(0, 20, 2))


def test_what_had_not_started_is_run_by_others(make: Callable[..., Pool], notes: Path) -> None:
    with make(size=2) as pool:
        stream = pool.imap(partial(die_on_some, notes, (50,)), range(200))
        lost = 0
        for _ in range(200):
            try:
                stream.next(PATIENCE)
            except WorkerLostError:
                lost += 1
    assert lost >= 1
    assert Counter(noted(notes)) == Counter(map(str, range(200)))


def test_a_cluster_that_is_killed(tmp_path: Path) -> None:
    found = tmp_path / "found"
    command = [sys.executable, str(HERE / "ray_pool_lost_cluster.py"), str(found)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert found.read_text().splitlines()[2:] == ["closed"], found.read_text()


def _pid(_: int) -> int:
    return os.getpid()


def _note_and_wait_on(which: int, notes: Path, gate: Gate, item: int) -> int:
    if item == which:
        note_and_wait(notes, gate)
    return item
