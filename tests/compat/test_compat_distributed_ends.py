"""How members of a world end, and what the others see of it."""

from __future__ import annotations

import signal
import subprocess
import sys

import compat_distributed_programs as programs
import pytest
from compat_distributed_crew import HERE, Crew, crew
from compat_distributed_programs import SIZE
from free_ports import free_ports

from pparallel.testing.patience import PATIENCE

WAYS = 6  #: of waiting for a member, in ``wait_for``


def join(members: Crew) -> None:
    members.join()
    for number in range(SIZE):
        members.outcome(number)


def end(members: Crew, number: int, way: str) -> None:
    if way == "killed":
        members.kill(number)
    else:
        ended = members.release(number)
        assert ended is not None
        assert ended.code == 0


@pytest.mark.parametrize(
    ("transport", "way"),
    [("zmq", "killed"), ("torch_rpc", "killed"), ("ipc", "without stop")],
)
def test_a_member_that_ends_is_no_matter_for_the_rest(transport: str, way: str) -> None:
    with crew(PPARALLEL_MACHIN_TRANSPORT=transport) as members:
        join(members)
        members.all(programs.hold, "held")
        for number in (0, 2):
            members.start(number, programs.wait_for, "m1", "held")
        end(members, 1, way)
        for number in (0, 2):
            told = members.outcome(number)
            assert len(told) == WAYS
            assert all(each.startswith("member 'm1' ") for each in told)
        for number in (0, 2):
            members.start(number, programs.free_again, "held")
        assert [members.outcome(number) for number in (0, 2)] == [True, True]
        members.start(2, programs.found_again, "held")
        assert members.outcome(2) == (2, 3)
        for number in (0, 2):
            members.start(number, programs.stop)
        assert [members.outcome(number) for number in (0, 2)] == [False, False]


@pytest.mark.parametrize(("transport", "way"), [("ipc", "killed"), ("zmq", "without stop")])
def test_the_end_of_rank_0_is_that_of_the_world(transport: str, way: str) -> None:
    """Nobody waits any more, and all may be in another world after that."""
    with crew(PPARALLEL_MACHIN_TRANSPORT=transport) as members:
        join(members)
        members.all(programs.hold, "held")
        for number in (1, 2):
            members.start(number, programs.wait_for, "m0", "held")
        end(members, 0, way)
        for number in (1, 2):
            told = members.outcome(number)
            assert len(told) == WAYS
            assert all("'m0'" in each for each in told)
        for number in (1, 2):
            members.start(number, programs.stop)
            assert "PeerLostError: member 'm0'" in members.error(number)
            members.start(number, programs.join, number - 1, members.ports, size=2)
        for number in (1, 2):
            members.outcome(number)
            members.start(number, programs.stop)
        for number in (1, 2):
            assert members.outcome(number) is False
            end(members, number, "without stop")


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_a_member_that_dies_in_a_collective(backend: str) -> None:
    with crew() as members:
        join(members)
        for number in range(SIZE):
            members.start(number, programs.meet_until_lost, backend, number != 2)
        members.outcome(2)
        members.kill(2)
        for number in (0, 1):
            assert members.outcome(number).startswith("member 'm2' ")
            members.start(number, programs.stop)
        for number in (0, 1):
            members.outcome(number)


def test_a_stopped_member_is_not_waited_for() -> None:
    with crew(PPARALLEL__TRANSPORT__LIVENESS_BOUND="1") as members:
        join(members)
        members.all(programs.hold, "held")
        members.processes[1].signal(signal.SIGSTOP)
        members.start(0, programs.wait_for, "m1", "held")
        assert len(members.outcome(0)) == WAYS


PROGRAM = """
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context, util

import torch

from pparallel.compat.machin.distributed import World


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)

    @torch.jit.script
    def script_add(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return one + other


def use_late(group):
    while not util.is_exiting():
        time.sleep(0.01)
    print(group.rpc_sync("m0", pow, args=(2, 5)))


def main(rank, *ports):
    dist, rpc = (f"tcp://localhost:{port}" for port in ports)
    world = World(f"m{rank}", rank, 2, dist_init_method=dist, rpc_init_method=rpc)
    group = world.create_rpc_group("group", ["m0", "m1"])
    assert group.rpc_sync("m0", pow, args=(2, 10)) == 1024
    # what is __main__ in one member is __mp_main__ in the other
    ones = torch.ones(2)
    assert group.rpc_sync(1 - rank, script_add, args=(ones, ones)).tolist() == [2, 2]
    group.barrier()
    if rank:
        ThreadPoolExecutor().submit(int).result()  # its thread ends when the interpreter says so
        threading.Thread(target=use_late, args=(group,)).start()
    if rank:
        raise ValueError("of the program")


if __name__ == "__main__":
    process = get_context("spawn").Process(target=main, args=(1, *sys.argv[1:3]))
    process.start()
    main(0, *sys.argv[1:3])
    process.join()
    print("done", process.exitcode)
"""


def test_programs_that_never_stop(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A program, and a child of multiprocessing's that raises, end as if they had been in no world.

    Threads that go on when the child's function has returned may use it still.
    """
    program = tmp_path_factory.mktemp("program") / "program.py"
    program.write_text(PROGRAM)
    ports = map(str, free_ports())
    done = subprocess.run(
        [sys.executable, str(program), *ports],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        cwd=HERE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "32\ndone 1\n"), done.stderr
    assert done.stderr.count("Traceback") == 1
    assert "ValueError: of the program" in done.stderr
