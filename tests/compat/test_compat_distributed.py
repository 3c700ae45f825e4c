"""``pparallel.compat.machin.distributed``: a world, its groups, and what they do."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import compat_distributed_programs as programs
import pytest
from compat_distributed_crew import Crew, crew
from compat_distributed_programs import SIZE
from free_ports import free_ports

from pparallel.compat.machin import distributed
from pparallel.compat.machin.distributed import CollectiveGroup, RpcGroup, World


@contextmanager
def world_of(transport: str) -> Iterator[Crew]:
    """Have the members of one world, which serves many cases."""
    with crew(PPARALLEL_MACHIN_TRANSPORT=transport) as members:
        members.join()
        assert [members.outcome(number) for number in range(SIZE)] == ["m0", "m1", "m2"]
        yield members
        assert members.all(programs.stop) == [False] * SIZE
        ends = [members.release(number) for number in range(SIZE)]
        assert [each and each.code for each in ends] == [0] * SIZE


@pytest.fixture(scope="module")
def world() -> Iterator[Crew]:
    with world_of("zmq") as members:
        yield members


def test_who(world: Crew) -> None:
    world.all(programs.who)


def test_messages(world: Crew) -> None:
    world.all(programs.messages)


def test_operations(world: Crew) -> None:
    world.all(programs.operations)


def test_multigpu_forms(world: Crew) -> None:
    world.all(programs.multigpu_forms)


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_collectives_of_some(world: Crew, backend: str) -> None:
    world.all(programs.some_of_them, backend)


def test_refused_collectives(world: Crew) -> None:
    world.all(programs.refused_collectives)


def test_a_group_has_its_own_timeout(world: Crew) -> None:
    world.all(programs.too_late, 1.0)


def test_calls(world: Crew) -> None:
    world.all(programs.calls)


def test_errors_of_calls(world: Crew) -> None:
    world.all(programs.errors)


def test_pairs(world: Crew) -> None:
    for key in ("name", ("a", 1), 7):
        world.all(programs.pairs, key)


def test_services(world: Crew) -> None:
    for key in ("name", ("a", 1), 7):
        world.all(programs.services, key)


def test_groups_travel(world: Crew) -> None:
    world.all(programs.travelling)


def test_a_group_called_as_that_of_all_members(world: Crew) -> None:
    world.all(programs.the_name_of_all)


def test_threads(world: Crew) -> None:
    world.all(programs.threads)


def test_script_functions(world: Crew) -> None:
    world.all(programs.script_functions)


@pytest.mark.parametrize("transport", ["ipc", "torch_rpc"])
def test_other_transports(transport: str) -> None:
    with world_of(transport) as members:
        members.all(programs.who)
        members.all(programs.messages)
        members.all(programs.operations)
        members.all(programs.calls)
        members.all(programs.errors)
        members.all(programs.pairs, "name")
        members.all(programs.services, "name")
        members.all(programs.travelling)
        members.all(programs.script_functions)


# -- worlds that come and go ----------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["zmq", "ipc"])
def test_nothing_is_left_of_a_world(transport: str) -> None:
    with crew(PPARALLEL_MACHIN_TRANSPORT=transport) as members:
        for rank in range(SIZE):
            members.start(rank, programs.come_and_go, rank, members.ports)
        assert [members.outcome(rank) for rank in range(SIZE)] == [2] * SIZE


def test_two_worlds_on_one_machine() -> None:
    """They differ in their ports, and may be called alike."""
    with crew(6) as members:
        other = free_ports()
        for number in range(6):
            ports = members.ports if number < SIZE else other
            members.start(number, programs.come_and_go, number % SIZE, ports, times=1)
        assert [members.outcome(number) for number in range(6)] == [1] * 6


@pytest.mark.parametrize("what", ["init_dist", "init_rpc"])
def test_without(what: str) -> None:
    """The address of what is left out is not used: another may have it."""
    method = {"init_dist": "dist_init_method", "init_rpc": "rpc_init_method"}[what]
    with crew() as members, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        options: dict[str, Any] = {what: False, method: f"tcp://localhost:{other.getsockname()[1]}"}
        members.join(**options)
        for number in range(SIZE):
            members.outcome(number)
        members.all(programs.without, what)
        members.all(programs.stop)


@pytest.mark.usefixtures("_no_world")
def test_a_world_of_one() -> None:
    ports = free_ports()
    for _ in range(2):
        assert programs.join(0, ports, 1, "alone") == "alone"
        world = programs.here()
        group = world.create_rpc_group("group", ["alone"])
        group.pair("value", 3)
        assert group.rpc_sync("alone", programs.add, args=(1, 2)) == 3
        assert group.get_paired("value").to_here() == 3
        collective = world.create_collective_group([0])
        collective.barrier()
        assert collective.size() == 1
        world.stop()


@pytest.fixture
def _no_world() -> Iterator[None]:
    yield
    world = distributed.get_world()
    if world is not None:
        world.stop()


def test_without_a_world() -> None:
    assert distributed.get_world() is None
    assert not distributed.is_world_initialized()
    for use in (distributed.get_cur_name, distributed.get_cur_rank, RpcGroup.get_cur_name):
        with pytest.raises(RuntimeError, match="in no world: make one first"):
            use()
    with pytest.raises(RuntimeError, match="in no world"):
        RpcGroup("group", ["a"])
    with pytest.raises(RuntimeError, match="not picklable"):
        pickle.dumps(CollectiveGroup(None, None))


def test_worlds_are_classes() -> None:
    assert isinstance(World, type)
