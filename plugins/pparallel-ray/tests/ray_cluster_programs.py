"""Programs of the tests of how a process is connected to a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil

_SMALL = {"num_cpus": 2, "object_store_memory": 100 << 20}


def own() -> None:
    """Start a cluster; say where it listens, who is let in, and what it leaves."""
    from pparallel_ray.cluster import Cluster, RayConnection

    before = dict(os.environ)
    cluster = Cluster(RayConnection.model_validate(_SMALL))
    opening = threading.Thread(target=cluster.open)
    opening.start()
    opening.join()
    with cluster:
        say(f"outlives a thread: {_runs_a_task()}")
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


def _runs_a_task() -> bool:
    import ray

    return bool(ray.get(ray.remote(num_cpus=0)(lambda: True).remote()))


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
    environment["RAY_NUM_REDIS_GET_RETRIES"] = "2"  # each takes a second
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


def import_plugin() -> None:
    import pparallel_ray

    assert pparallel_ray.pparallel_backends()
    say("ray" in sys.modules)


def say(what: object) -> None:
    print(what, flush=True)  # noqa: T201


if __name__ == "__main__":
    programs = {"own": own, "stranger": stranger, "import": import_plugin}
    programs[sys.argv[1]](*sys.argv[2:])  # type: ignore[operator]
