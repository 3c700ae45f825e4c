"""Programs of the tests of how a process is connected to a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

_SMALL = {"num_cpus": 2, "object_store_memory": 100 << 20}


def own() -> None:
    """Start a cluster; say where it listens, who is let in, and what it leaves."""
    from pparallel_ray.cluster import Cluster, RayConnection

    before = dict(os.environ)
    with Cluster(RayConnection.model_validate(_SMALL)) as cluster:
        children = psutil.Process().children(recursive=True)
        say(f"listens on {', '.join(sorted(_hosts([psutil.Process(), *children])))}")
        say(f"a stranger: {_stranger(cluster.address)}")
        folder = _folder()
    running = [each for each in children if each.is_running() and each.status() != "zombie"]
    variables = any(name.startswith("RAY_AUTH") for name in os.environ.keys() - before.keys())
    found = [
        running or "no processes",
        folder if folder.exists() else "no folder",
        variables or "no variables",
    ]
    say(f"left: {', '.join(map(str, found))}")


def _folder() -> Path:
    """Return the folder of the cluster that this process has started."""
    (found,) = Path(tempfile.gettempdir()).glob(f"pparallel-ray-*/session_*_{os.getpid()}")
    return found.parent


def _hosts(processes: Sequence[psutil.Process]) -> set[str]:
    return {
        connection.laddr.ip.removeprefix("::ffff:")
        for each in processes
        for connection in each.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def _stranger(address: str) -> str:
    """Try to use the cluster without its token, from a process of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    command = [sys.executable, __file__, "stranger", address]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    return done.stdout.strip()


def stranger(address: str) -> None:
    from pparallel_ray.cluster import Cluster, RayConnection

    try:
        with Cluster(RayConnection(address=address)):
            say("let in")
    except Exception as error:  # noqa: BLE001 - which one is what the test asks
        say(type(error).__name__)


def linger(told: str) -> None:
    """Start a cluster, leave the numbers of its processes, and wait to be ended."""
    from pparallel_ray.cluster import Cluster, RayConnection

    with Cluster(RayConnection.model_validate(_SMALL)):
        pids = [each.pid for each in psutil.Process().children(recursive=True)]
        Path(f"{told}.new").write_text(" ".join(map(str, [_folder(), *pids])))
        os.rename(f"{told}.new", told)
        time.sleep(600)


def import_plugin() -> None:
    import pparallel_ray

    assert pparallel_ray.pparallel_backends()
    say("ray" in sys.modules)


def awaited(told: Path, patience: float = 60.0) -> tuple[Path, list[int]]:
    """Return the folder and the numbers that :func:`linger` has left."""
    end = time.monotonic() + patience
    while not told.exists():
        assert time.monotonic() < end, "the cluster has not started"
        time.sleep(0.02)
    folder, *pids = told.read_text().split()
    return Path(folder), [int(each) for each in pids]


def until_removed(folder: Path, patience: float = 30.0) -> None:
    """Wait until a folder is gone."""
    end = time.monotonic() + patience
    while folder.exists():
        assert time.monotonic() < end, f"{folder} stays"
        time.sleep(0.02)


def gone(pids: Sequence[int], patience: float = 30.0) -> bool:
    """Return whether all processes end."""
    end = time.monotonic() + patience
    while any(_runs(each) for each in pids) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(_runs(each) for each in pids)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def say(what: object) -> None:
    print(what, flush=True)  # noqa: T201


if __name__ == "__main__":
    programs = {"own": own, "stranger": stranger, "linger": linger, "import": import_plugin}
    programs[sys.argv[1]](*sys.argv[2:])  # type: ignore[operator]
