"""Faults of ``machin.parallel.distributed`` that are not here: each would hang or fail there."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import compat_distributed_programs as programs
import preloads
import zmq
from compat_distributed_crew import crew
from compat_distributed_programs import SIZE
from typing_extensions import override

from pparallel.runtime import processes
from pparallel.testing.patience import PATIENCE

MODULES = (
    "pparallel.compat.torch_multiprocessing",
    *(
        f"pparallel.compat.machin.{each}"
        for each in ("pickle", "queue", "pool", "assigner", "server", "distributed")
    ),
)


def test_the_names_of_a_dead_member_are_free() -> None:
    """The table of names, on rank 0, knew no heartbeat: a dead holder's keys stayed for ever."""
    with crew() as members:
        members.join()
        for number in range(SIZE):
            members.outcome(number)
        members.all(programs.hold, "held")
        members.kill(1)
        members.start(2, programs.wait_for_free_names, "held")
        members.outcome(2)
        members.start(0, programs.free_again, "held")
        members.start(2, programs.free_again, "held")
        assert members.outcome(0)
        assert members.outcome(2)
        members.start(2, programs.found_again, "held")
        assert members.outcome(2) == (2, 3)


def test_a_call_to_a_dead_member_ends_at_once() -> None:
    """A call waited for its time-out, a minute, or for ever with none."""
    with crew() as members:
        members.join(rpc_timeout=0, dist_timeout=0)
        for number in range(SIZE):
            members.outcome(number)
        members.all(programs.hold, "held")
        members.start(0, programs.wait_for, "m1", "held")
        members.kill(1)
        killed = time.monotonic()
        assert all("'m1'" in each for each in members.outcome(0))
        assert time.monotonic() - killed < 30


def test_barriers_one_after_another() -> None:
    """A barrier set and cleared its event at once: who came late slept for ever."""
    with crew() as members:
        members.join()
        for number in range(SIZE):
            members.outcome(number)
        assert members.all(programs.barriers, 100) == [100] * SIZE
        members.all(programs.stop)


def test_a_group_that_not_all_enter() -> None:
    """Who entered a group polled for those that had died before they came."""
    with crew() as members:
        members.join()
        for number in range(SIZE):
            members.outcome(number)
        for number in (0, 1):
            members.start(number, programs.rpc_group_of_lost, ["m0", "m1", "m2"])
        members.kill(2)
        for number in (0, 1):
            assert members.outcome(number).startswith("member 'm2' ")


def test_nothing_is_unpickled_from_strangers(tmp_path: Path) -> None:
    """Whoever reached a port of torch RPC could run code in the member (SECURITY.md of PyTorch)."""
    run = tmp_path / "run"
    with crew() as members, zmq.Context() as context:
        members.join()
        for number in range(SIZE):
            members.outcome(number)
        with context.socket(zmq.DEALER) as stranger:
            stranger.linger = 0
            stranger.connect(f"tcp://127.0.0.1:{members.ports[1]}")
            payload = pickle.dumps(_Touch(run))
            for count in range(1, 6):
                stranger.send_multipart([payload] * count)
            assert members.all(programs.barriers, 3) == [3] * SIZE
            assert not stranger.poll(100)
        members.all(programs.stop)
    assert not run.exists()


class _Touch:
    def __init__(self, file: Path) -> None:
        self._file = file

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._file,)


def test_an_import_changes_nothing(tmp_path: Path) -> None:
    """machin set the sharing strategy ``file_system`` for the whole program when imported."""
    outcome = tmp_path / "outcome"
    process = processes.start(
        "compat_distributed_imports:import_all",
        pickle.dumps((MODULES, outcome)),
        preload=preloads.MEMBERS,
    )
    assert process.ended(PATIENCE) is not None
    process.close()
    assert outcome.read_text() == ""
