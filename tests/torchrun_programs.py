"""What ranks run under torchrun, and a program for torchrun itself to start."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import signal
import sys
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from typing_extensions import override

import pparallel
from pparallel.interfaces.ordered_server import Found, OrderedServer, OrderedServerConfig
from pparallel.runtime import environment
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import current

STEPS = 4


def die_once(rank: int) -> tuple[int, int]:
    """Be killed in rank 1 the first time; return the rank and how often it was started again."""
    found = environment.torchrun()
    assert found is not None
    if rank == 1 and found.restart == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if found.restart == 0:
        threading.Event().wait()
    return rank, found.restart


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


def call_the_other(rt: pparallel.Runtime) -> str:
    """Ask the other member for its name."""
    group = rt.group()
    group.barrier(20.0)
    other = rt.members[1 - rt.rank]
    found = group.rpc_sync(other, name_of_this_member)
    return f"{rt.name} calls {found}"


def name_of_this_member() -> str:
    """Return the name of the member where this runs."""
    return current.endpoint().name


def wait(rank: int, folder: Path) -> None:
    """Leave the pid, and wait for ever."""
    (folder / f"{rank}.part").write_text(str(os.getpid()))
    (folder / f"{rank}.part").rename(folder / f"{rank}.pid")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        threading.Event().wait()


class KeptConfig(OrderedServerConfig, frozen=True):
    """An ordered server in a file.

    Attributes:
        backend: its name.
        path: the file.
    """

    backend: Literal["kept"] = "kept"
    path: str


class KeptServer(OrderedServer):
    """Keeps the newest value of each key in a file, which outlives the processes."""

    def __init__(self, config: KeptConfig, *, member: Member) -> None:
        self._path = Path(config.path)

    @override
    def open(self) -> None:
        self._path.touch()

    @override
    def close(self) -> None:
        """Nothing is held."""

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        with self._locked() as held:
            if key in held and held[key][1] != prev_version:
                return False
            held[key] = (value, version)
            new = self._path.with_suffix(".new")
            new.write_bytes(pickle.dumps(held))
            self._path.write_bytes(new.read_bytes())
            return True

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        with self._locked() as held:
            return held.get(key)

    @override
    def wait(
        self, key: Hashable, version: Hashable | None = None, timeout: float | None = None
    ) -> Found | None:
        end = None if timeout is None else monotonic() + timeout
        while (found := self.fetch(key, None)) is None or found[1] == version:
            if end is not None and monotonic() >= end:
                return None
            threading.Event().wait(0.005)
        return found

    @override
    def versions(self, key: Hashable) -> list[Any]:
        found = self.fetch(key, None)
        return [] if found is None else [found[1]]

    @override
    def keys(self) -> list[Any]:
        with self._locked() as held:
            return list(held)

    @override
    def delete(self, key: Hashable) -> bool:
        raise NotImplementedError

    @contextmanager
    def _locked(self) -> Iterator[dict[Hashable, Found]]:
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            data = self._path.read_bytes()
            yield pickle.loads(data) if data else {}


def train(rt: pparallel.Runtime, folder: Path) -> list[object]:
    """Count on the ordered server, be killed once in the middle, and go on from there."""
    started = environment.torchrun()
    assert started is not None
    group = rt.group()
    with KeptServer(KeptConfig(path=str(folder / "kept")), member=rt.member) as server:
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
    """Train as the member that torchrun says."""
    config = {
        "members": "auto",
        "transport": {"backend": "torch_rpc"},
        "reducer": {"backend": "local"},
    }
    (told,) = pparallel.launch(config, train, (folder,))
    (folder / f"done.{told[1]}").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
