"""What ranks run under torchrun, and a program for torchrun itself to start."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import pparallel
from pparallel.runtime import environment
from pparallel.runtime.rpc import context
from pparallel_servers import SqliteOrderedServerConfig

STEPS = 4


def fail_again(rank: int) -> None:
    """Fail in rank 1 each time."""
    found = environment.torchrun()
    assert found is not None
    if rank == 1:
        message = f"failed after {found.restart} restarts"
        raise LookupError(message)
    threading.Event().wait()


def place(rank: int) -> tuple[int, int, int, bool]:
    """Return what torchrun has told, and whether torch is imported."""
    found = environment.torchrun()
    assert found is not None
    assert (found.rank, found.address is not None) == (rank, True)
    return found.local_rank, found.world_size, found.machines, "torch" in sys.modules


def threads(rank: int) -> str:
    """Return how many threads OpenMP may use."""
    return os.environ["OMP_NUM_THREADS"]


def call_the_other(rt: pparallel.Runtime) -> tuple[str, int, int, int]:
    """Ask the other member for its name; return it, and this member's place."""
    group = rt.group()
    group.barrier(20.0)
    other = rt.members[1 - rt.rank]
    found = group.rpc_sync(other, name_of_this_member)
    there = environment.torchrun()
    assert there is not None
    told = f"{rt.name} calls {found}"
    return told, there.local_rank, there.world_size, there.machines


def name_of_this_member() -> str:
    """Return the name of the member where this runs."""
    return context.endpoint().name


def wait(rank: int, folder: Path) -> None:
    """Leave the pid, and wait for ever."""
    (folder / f"{rank}.part").write_text(str(os.getpid()))
    (folder / f"{rank}.part").rename(folder / f"{rank}.pid")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        threading.Event().wait()


def train(rt: pparallel.Runtime, folder: Path) -> list[object]:
    """Count on the ordered server, be killed once in the middle, and go on from there."""
    started = environment.torchrun()
    assert started is not None
    group = rt.group()
    with pparallel.build(SqliteOrderedServerConfig(path=folder / "kept.db")) as server:
        found = server.pull("step")
        first = step = 0 if found is None else found[0]
        while step < STEPS:
            group.barrier(20.0)
            if rt.rank == 1 and step == 2 and started.restart == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if rt.rank == 0:
                assert server.push("step", step + 1, step + 1, step or None)
            newer = server.wait("step", step or None, 20.0)
            assert newer is not None
            step = newer[0]
    return [rt.name, rt.local_rank, rt.members, started.restart, first, step]


def main(folder: Path) -> None:
    """Train as the member that torchrun says; then call on the default transport."""
    config = {
        "members": "auto",
        "transport": {"backend": "torch_rpc"},
        "reducer": {"backend": "local"},
    }
    (told,) = pparallel.launch(config, train, (folder,))
    (called,) = pparallel.launch({"members": "auto"}, call_the_other)
    with pparallel.build({"members": "auto"}) as rt:  # again, in the same processes
        assert call_the_other(rt) == tuple(called)
    (folder / f"done.{told[1]}").write_text(json.dumps([told, called]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
