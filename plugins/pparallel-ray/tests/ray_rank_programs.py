"""What ranks run in the tests of the launcher on Ray."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pparallel
from pparallel.runtime import member

if TYPE_CHECKING:
    from pparallel import Runtime


def place(rank: int) -> tuple[int, int | None]:
    return rank, member.local_rank()


def say(rank: int) -> None:
    print(f"rank {rank} printed", flush=True)  # noqa: T201
    print(f"rank {rank} complained", file=sys.stderr)  # noqa: T201
    logging.getLogger("ray_rank_programs").warning("rank %d warned", rank)


def say_as_member(rt: Runtime) -> str:
    print(f"printed by {rt.name}")  # noqa: T201
    rt.group().barrier()
    return f"{type(rt.transport).__name__} {rt.local_rank}"


def wait(rank: int, folder: Path) -> None:
    """Leave the numbers of this process and of its supervisor, and wait to be ended."""
    (folder / "begun").with_suffix(f".{rank}").write_text(f"{os.getpid()} {os.getppid()}")
    (folder / f"begun.{rank}").rename(folder / f"rank.{rank}")
    time.sleep(600)


def surroundings(rank: int) -> tuple[str, list[str], bool, str | None, str | None]:
    is_in_path = os.path.dirname(os.path.abspath(__file__)) in sys.path
    omp, mode = os.environ.get("OMP_NUM_THREADS"), os.environ.get("RAY_AUTH_MODE")
    return os.getcwd(), sys.argv, is_in_path, omp, mode


def script(*_: object) -> tuple[str, list[str]]:
    """Return the file of the script, as ``__main__`` here has it, and its arguments."""
    main = sys.modules["__main__"]
    assert vars(main).keys() <= {*vars(types.ModuleType("")), "__builtins__", "__file__"}
    return str(main.__file__), sys.argv


def use_ray(rank: int) -> tuple[str, int]:
    """Run a task of Ray's own in the cluster that placed this rank."""
    import ray

    from pparallel_ray.cluster import Cluster, RayConnection

    with Cluster(RayConnection()) as cluster:
        task = ray.remote(num_cpus=0)(lambda: os.getpid())
        return cluster.address, ray.get(task.remote())


def fork_and_return(rank: int) -> str:
    """Leave a child behind that holds whatever it has inherited."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3)"], close_fds=False)
    return "returned"


def echo(rank: int, value: object) -> object:
    return value


def launch_and_wait(folder: Path, address: str | None) -> None:
    """Be a program that launches ranks, which wait; a test ends it."""
    from pparallel_ray import RayLauncherConfig
    from pparallel_ray.cluster import RayConnection

    options = {} if address else {"num_cpus": 4, "object_store_memory": 100 << 20}
    cluster = RayConnection(address=address, **options)
    with pparallel.build(RayLauncherConfig(cluster=cluster)) as launcher:
        launcher.spawn(wait, (folder,), nprocs=2)


def started(folder: Path, ranks: Sequence[int], patience: float = 50.0) -> dict[int, list[int]]:
    """Wait until ranks have begun to wait; return the pids of each, and of its supervisor."""
    end = time.monotonic() + patience
    while not all((folder / f"rank.{rank}").exists() for rank in ranks):
        assert time.monotonic() < end, "the ranks have not started"
        time.sleep(0.02)
    found = {rank: (folder / f"rank.{rank}").read_text().split() for rank in ranks}
    return {rank: [int(each) for each in pids] for rank, pids in found.items()}


def gone(pids: Sequence[int], patience: float = 30.0) -> bool:
    """Return whether all processes end."""
    end = time.monotonic() + patience
    while any(_runs(each) for each in pids) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(_runs(each) for each in pids)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


if __name__ == "__main__":
    launch_and_wait(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
