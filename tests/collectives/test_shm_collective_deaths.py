"""Members of the collective `shm` that are killed, stopped or interrupted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from crew import Crew, crew

from pparallel.testing.patience import until

NAMES = ("a", "b", "c")
PROGRAMS = "shm_collective_programs"
SHM: dict[str, Any] = {"collective": {"backend": "shm"}}


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Crew]:
    with crew(tmp_path, {"backend": "ipc"}, NAMES) as started:
        yield started


def all_noted(members: Crew, what: str, names: tuple[str, ...] = NAMES) -> None:
    for each in names:
        members.noted(f"{what} {each}")


def test_a_member_killed_in_the_middle_of_an_operation(members: Crew) -> None:
    for each in NAMES:
        members.start(each, f"{PROGRAMS}:reduce_without_end", members.note("reduces"), **SHM)
    all_noted(members, "reduces")
    members.kill("c")
    for each in ("a", "b"):
        for told in members.answer(each):
            assert told.startswith("PeerLostError: member 'c'"), told


def test_a_member_killed_while_others_are_in_a_barrier(members: Crew) -> None:
    for each in NAMES:
        members.start(each, f"{PROGRAMS}:wait_in_a_barrier", members.note("waits"), **SHM)
    all_noted(members, "waits", ("a", "b"))
    members.kill("c")
    for each in ("a", "b"):
        for told in members.answer(each):
            assert told.startswith("PeerLostError: member 'c'"), told


def test_a_member_that_stands_still_for_a_moment(tmp_path: Path) -> None:
    with crew(tmp_path, {"backend": "ipc", "liveness_bound": 20.0}, NAMES) as members:
        for each in NAMES:
            members.start(each, f"{PROGRAMS}:go_on", 100, members.note("at"), **SHM)
        for number, name in enumerate(("c", "a", "b"), start=1):
            members.noted(f"at {number} {name}")
            members.signal(name, signal.SIGSTOP)
            process = psutil.Process(members.processes[name].pid)
            until(lambda: process.status() == psutil.STATUS_STOPPED, "it goes on")  # noqa: B023
            members.signal(name, signal.SIGCONT)
        assert [members.answer(each) for each in NAMES] == [100] * 3


def test_a_member_that_is_interrupted(members: Crew) -> None:
    for each in NAMES:
        members.start(each, f"{PROGRAMS}:be_interrupted", members.note("waits"), **SHM)
    all_noted(members, "waits", ("a", "b"))
    members.signal("a", signal.SIGUSR1)
    interrupted, waits, comes = (members.answer(each) for each in NAMES)
    assert interrupted[0] == "KeyboardInterrupt: enough"
    assert waits[0].startswith("RemoteError: KeyboardInterrupt: enough (in all_reduce by SUM)")
    for told in (interrupted[1], waits[1], comes[0], comes[1]):
        assert told.startswith("ClosedError: the group of ranks [0, 1, 2]"), told
        assert "rank 0 broke all_reduce by SUM off (KeyboardInterrupt: enough)" in told
    assert [each[2] for each in (interrupted, waits, comes)] == ["3.0"] * 3
