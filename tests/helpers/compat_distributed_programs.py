"""What the members of a world do, each in a process of its own."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed

import pparallel
from pparallel.compat.machin.distributed import (
    CollectiveGroup,
    RpcException,
    RpcGroup,
    World,
    get_cur_name,
    get_cur_rank,
    get_world,
    is_world_initialized,
)
from pparallel.errors import ConfigError, PeerLostError
from pparallel.interfaces.collective import ReduceOp
from pparallel.testing.leftovers import no_leftovers
from pparallel.testing.patience import PATIENCE, until

SIZE = 3  #: members of a world


# -- worlds ---------------------------------------------------------------------------------------


def join(
    rank: int, ports: tuple[int, int], size: int = SIZE, name: str = "", **options: Any
) -> str:
    options.setdefault("dist_init_method", f"tcp://localhost:{ports[0]}")
    options.setdefault("rpc_init_method", f"tcp://localhost:{ports[1]}")
    options.setdefault("dist_timeout", PATIENCE)
    options.setdefault("rpc_timeout", PATIENCE)
    return World(name or f"m{rank}", rank, size, **options).name


def join_differently(
    ports: tuple[int, int], rank: int, size: int = SIZE, name: str = "", transport: str = "zmq"
) -> str:
    os.environ["PPARALLEL_MACHIN_TRANSPORT"] = transport
    return join(rank, ports, size, name)


def join_by_environment(rank: int, ports: tuple[int, int], method: str) -> str:
    """Join as torchrun would have it; with method ``env`` its own store has the port."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "LOCAL_RANK": str(rank)}
    if method == "tcp":
        return join(-1, ports, -1, f"m{rank}")
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(ports[0])}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    return join(-1, ports, -1, f"m{rank}", dist_init_method="env://", rpc_init_method="env://")


def come_and_go_far(rank: int, ports: tuple[int, int], host: str, keys: str = "") -> str:
    """Join a world that has an address of the network."""
    if keys:
        os.environ["PPARALLEL_MACHIN_KEYS"] = keys
    name = join(
        rank,
        ports,
        dist_init_method=f"tcp://{host}:{ports[0]}",
        rpc_init_method=f"tcp://{host}:{ports[1]}",
    )
    assert rpc_group("far").rpc_sync("m1", add, args=(1, 2)) == 3
    all_ranks().barrier()
    here().stop()
    return name


def here() -> World:
    world = get_world()
    assert world is not None
    return world


def stop() -> bool:
    world = here()
    world.stop()
    world.stop()
    return is_world_initialized()


def come_and_go(rank: int, ports: tuple[int, int], times: int = 2) -> int:
    """Join a world and leave it, several times; nothing is left."""
    for _ in range(times):
        with no_leftovers():
            _come_and_go(rank, ports)
    return times


def come_and_go_with_torch(rank: int, ports: tuple[int, int]) -> tuple[int, int]:
    """As :func:`come_and_go`, where torch keeps some descriptors until the next world."""
    counts = []
    for _ in range(3):
        _come_and_go(rank, ports)
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
    return counts[1], counts[2]


def _come_and_go(rank: int, ports: tuple[int, int]) -> None:
    join(rank, ports)
    group = rpc_group("once")
    assert group.rpc_sync(f"m{(rank + 1) % SIZE}", add, args=(1, 2)) == 3
    all_ranks().barrier()
    here().stop()


def rpc_group(name: str, members: Sequence[str] = ("m0", "m1", "m2")) -> RpcGroup:
    return here().create_rpc_group(name, members)


def all_ranks(**options: Any) -> CollectiveGroup:
    return here().create_collective_group([0, 1, 2], **options)


def who() -> None:
    world = here()
    assert (world.name, world.rank, world.world_size) == (get_cur_name(), get_cur_rank(), SIZE)
    assert world.name == f"m{world.rank}"
    assert world.get_ranks() == [0, 1, 2]
    assert world.get_members() == ["m0", "m1", "m2"]
    assert isinstance(world.runtime, pparallel.Runtime)
    with pytest.raises(RuntimeError, match="in a world already"):
        World("another", 0, 1)
    assert get_world() is world
    with pytest.raises(RuntimeError, match="not picklable"):
        pickle.dumps(world)


# -- collective groups ----------------------------------------------------------------------------


def messages() -> None:
    group, rank = all_ranks(), get_cur_rank()
    if rank == 0:
        group.send(torch.zeros(5), 1)
        group.isend(torch.full((5,), 2.0), 2, tag=3).wait()
    elif rank == 1:
        into = torch.ones(5)
        assert group.recv(into) == 0
        assert into.tolist() == [0] * 5
        group.send(torch.ones(2, dtype=torch.cdouble) * 1j, 2)
    else:
        into, other = torch.ones(5), torch.ones(2, dtype=torch.cdouble)
        receiving = group.irecv(other, src=1)
        assert group.irecv(into, tag=3).wait() == 0
        assert into.tolist() == [2] * 5
        assert receiving.wait() == 1
        assert other.tolist() == [1j, 1j]
    group.barrier()
    group.destroy()
    group.destroy()


def operations() -> None:
    group, rank = all_ranks(timeout=30), get_cur_rank()
    assert group.size() == 3
    assert group.current_rank == rank
    for dtype in (torch.float32, torch.cfloat, torch.int64):
        _operations(group, rank, dtype)
    largest = torch.distributed.ReduceOp(torch.distributed.ReduceOp.MAX)
    for op in (torch.distributed.ReduceOp.MAX, largest, ReduceOp.MAX):
        tensor = torch.tensor([rank])
        group.all_reduce(tensor, op)
        assert tensor.item() == 2
    for unknown in (torch.distributed.ReduceOp.PREMUL_SUM, "most"):
        with pytest.raises(ValueError, match="choose one of SUM"):
            group.all_reduce(torch.ones(1), unknown)
    group.destroy()


def _operations(group: CollectiveGroup, rank: int, dtype: torch.dtype) -> None:
    def filled(value: int) -> torch.Tensor:
        return torch.full((4,), value, dtype=dtype)

    tensor = filled(rank)
    group.broadcast(tensor, 2)
    assert tensor.equal(filled(2))
    tensor = filled(rank)
    group.all_reduce(tensor)
    assert tensor.equal(filled(3))
    tensor = filled(rank + 1)
    work = group.reduce(tensor, 1, async_op=True)
    assert work is not None
    work.wait()
    assert tensor.equal(filled(6 if rank == 1 else rank + 1))
    outputs = [filled(-1) for _ in range(3)]
    group.all_gather(outputs, filled(rank))
    assert all(each.equal(filled(at)) for at, each in enumerate(outputs))
    into = [filled(-1) for _ in range(3)] if rank == 1 else None
    group.gather(filled(rank), into, 1)
    assert all(each.equal(filled(at)) for at, each in enumerate(into or []))
    parts = [filled(at * 10) for at in range(3)] if rank == 2 else None
    tensor = filled(-1)
    group.scatter(tensor, parts, 2)
    assert tensor.equal(filled(rank * 10))


def multigpu_forms() -> None:
    group, rank = all_ranks(), get_cur_rank()
    tensors = [torch.tensor([float(rank)]), torch.tensor([10.0 + rank])]
    group.broadcast_multigpu(tensors, 1, src_tensor=1)
    assert [each.item() for each in tensors] == [11, 11]
    group.all_reduce_multigpu(tensors)
    assert [each.item() for each in tensors] == [66, 66]
    tensors = [torch.ones(1), torch.ones(1)]
    group.reduce_multigpu(tensors, 2, dst_tensor=1)
    assert [each.item() for each in tensors] == ([1, 6] if rank == 2 else [1, 1])
    outputs = [[torch.zeros(1) for _ in range(6)] for _ in range(2)]
    group.all_gather_multigpu(outputs, [torch.tensor([rank + 0.0]), torch.tensor([rank + 0.5])])
    assert all([part.item() for part in each] == [0, 0.5, 1, 1.5, 2, 2.5] for each in outputs)
    group.destroy()


def some_of_them(backend: str) -> None:
    """Members of a group of some have their ranks of the world; others may ask for it too."""
    rank = get_cur_rank()
    for _ in range(2):
        group = here().create_collective_group([2, 1], backend=backend)
        tensor = torch.tensor([float(rank)])
        if rank == 0:
            assert (group.size(), group.recv(tensor), group.irecv(tensor).wait()) == (-1, -1, -1)
            assert group.broadcast(tensor, 2) is None
        else:
            assert (group.size(), group.current_rank) == (2, rank - 1)
            group.broadcast(tensor, 2)
            assert tensor.item() == 2
            with pytest.raises(ValueError, match=r"rank 0 is not in this group of \[1, 2\]"):
                group.send(tensor, 0)
            with pytest.raises(RuntimeError, match="not picklable"):
                pickle.dumps(group)
        group.destroy()


def refused_collectives() -> None:
    world = here()
    for ranks in ([0, 3], [0, 0], []):
        with pytest.raises(ValueError, match="ranks from 0 to 2, each once"):
            world.create_collective_group(ranks)
    with pytest.raises(ConfigError, match="come without MPI; write gloo"):
        world.create_collective_group([0, 1, 2], backend="mpi")


def too_late(timeout: float) -> None:
    """A receive, and a group, have the group's own time-out."""
    all_ranks().barrier()  # all are there, and have only to enter the next one
    group = all_ranks(timeout=timeout)
    if get_cur_rank() == 0:
        with pytest.raises(TimeoutError, match=f"within {timeout:g} s"):
            group.recv(torch.zeros(1), src=1)
        with pytest.raises(TimeoutError, match=f"within {timeout:g} s"):
            here().create_collective_group([0, 1], timeout=timeout)


# -- calls ----------------------------------------------------------------------------------------


def add(one: Any, other: Any = 0) -> Any:
    return one + other


def fail(error: Exception) -> None:
    raise error


class Unsendable(Exception):  # noqa: N818 - as users do
    """Cannot be rebuilt by whom it arrives at."""

    def __init__(self, here: str, there: str) -> None:
        super().__init__(here)
        self.lock = threading.Lock()


def fail_unsendably() -> None:
    raise Unsendable("it is locked", "")


class Counter:
    def __init__(self, group: RpcGroup | None = None) -> None:
        self.group, self.count = group, 0

    def add(self, number: int = 1) -> int:
        self.count += number
        return self.count


def calls() -> None:
    group = rpc_group("calls")

    class Target:
        name = "m1"

    for to in ("m1", 1, Target()):
        assert group.rpc_sync(to, add, args=(1,), kwargs={"other": 2}) == 3
        assert group.rpc_async(to, add, PATIENCE, (1, 3)).wait() == 4
        reference = group.remote(to, add, args=(torch.ones(2), 4))
        assert reference.to_here().tolist() == [5, 5]
        assert reference.owner_name() == "m1"
    assert group.rpc_sync("m2", lambda: get_cur_name()) == "m2"
    assert group.rpc_sync(group.get_cur_name(), add, args=(2, 2)) == 4
    for to in ("m3", 7):
        with pytest.raises(RuntimeError, match=r"m3|rank 7"):
            group.rpc_sync(to, add)
    with pytest.raises(TimeoutError):
        group.rpc_sync((get_cur_rank() + 1) % SIZE, time.sleep, 0.01, (0.2,))
    group.barrier()
    group.destroy()


def errors() -> None:
    """What fails there is an RpcException here, and what it was."""
    group = rpc_group("errors")
    for error in (ValueError("no"), KeyError("key"), OSError(2, "gone"), PeerLostError("x", "y")):
        for found in (
            _raised(group.rpc_sync, "m1", fail, args=(error,)),
            _raised(group.rpc_async("m1", fail, args=(error,)).wait),
            _raised(group.remote("m1", fail, args=(error,)).to_here),
        ):
            assert isinstance(found, type(error))
            assert (str(found), found.args) == (str(error), error.args)
            assert "in fail" in str(found.__cause__)
            assert "m1" in str(found.__cause__)
    assert "it is locked" in str(_raised(group.rpc_sync, "m1", fail_unsendably))
    assert "SystemExit" in str(_raised(group.rpc_sync, "m1", sys.exit))
    group.barrier()
    if get_cur_rank() == 0:
        group.register("fail", fail)
    group.barrier()
    refused = (ValueError("no"),)
    for found in (
        _raised(group.registered_sync, "fail", refused),
        _raised(group.registered_async("fail", refused).wait),
        _raised(group.registered_remote("fail", refused).to_here),
    ):
        assert isinstance(found, ValueError)
    assert isinstance(
        _raised(group.rpc_sync, "m0", _call_of_a_call, args=(group,)), ArithmeticError
    )
    group.barrier()


def _raised(call: Callable[..., object], *args: object, **kwargs: object) -> BaseException:
    with pytest.raises(RpcException) as found:
        call(*args, **kwargs)
    return found.value


def _call_of_a_call(group: RpcGroup) -> None:
    group.rpc_sync("m1", fail, args=(ZeroDivisionError("deep"),))


def pairs(key: Any) -> None:
    group, rank = rpc_group("pairs"), get_cur_rank()
    if rank == 0:
        group.pair(key, Counter())
    group.barrier()
    assert group.is_paired(key)
    with pytest.raises(KeyError, match="already paired to Group"):
        group.pair(key, 1)
    with pytest.raises(KeyError, match="not found on Group"):
        group.get_paired("another")
    if rank:
        with pytest.raises(KeyError, match="not paired to"):
            group.unpair(key)
    with pytest.raises(KeyError, match="not paired to"):
        group.unpair("another")
    reference = group.get_paired(key)
    assert reference.to_here().count == 0
    group.barrier()
    reference.rpc_sync().add()
    group.barrier()
    assert reference.to_here().count == 3
    group.barrier()
    if rank == 0:
        group.unpair(key)
    group.barrier()
    assert not group.is_paired(key)
    group.destroy()


def services(key: Any) -> None:
    group, rank = rpc_group("services"), get_cur_rank()
    counter = Counter()
    if rank == 0:
        group.register(key, counter.add)
    group.barrier()
    assert group.is_registered(key)
    with pytest.raises(KeyError, match="already registered in Group"):
        group.register(key, counter.add)
    if rank:
        with pytest.raises(KeyError, match="not registered in"):
            group.deregister(key)
    with pytest.raises(KeyError, match="not found on Group"):
        group.registered_sync("another")
    if rank == 1:
        assert group.registered_sync(key, args=(10,)) == 10
        assert group.registered_async(key, kwargs={"number": 5}).wait() == 15
        assert group.registered_remote(key).to_here() == 16
    group.barrier()
    if rank == 0:
        assert counter.count == 16
        group.deregister(key)
    group.barrier()
    assert not group.is_registered(key)
    group.destroy()


def travelling() -> None:
    """A group pickles as its name and members, and works where it arrives."""
    group, rank = rpc_group("travelling"), get_cur_rank()
    if rank == 0:
        group.pair("server", Counter(group))
    group.barrier()
    found = group.get_paired("server").to_here()
    assert found.group is not None
    assert found.group.get_group_members() == ["m0", "m1", "m2"]
    assert found.group.rpc_sync("m2", add, args=(1, 1)) == 2
    assert found.group.is_member()
    assert group.rpc_sync("m1", _is_here, args=(group,))
    group.barrier()
    pair = rpc_group("pair", ["m1", "m0"]) if rank < 2 else None
    if pair is not None:
        assert (pair.size(), pair.get_group_members()) == (2, ["m0", "m1"])
        assert pair.is_member("m0")
        assert not pair.is_member("m2")
        if rank == 0:
            group.rpc_sync("m2", _use_from_outside, args=(pair,))
        pair.barrier()
    group.barrier()
    if rank == 2:
        with pytest.raises(RuntimeError, match=r"'m2' is not in group 'two' of \['m0', 'm1'\]"):
            rpc_group("two", ["m0", "m1"])
    with pytest.raises(RuntimeError, match="'travelling' exists already"):
        rpc_group("travelling")
    with pytest.raises(ValueError, match="'m9' is no member of this world"):
        rpc_group("nine", ["m0", "m1", "m2", "m9"])
    group.destroy()
    group.destroy()
    with pytest.raises(RuntimeError, match="was destroyed"):
        group.rpc_sync("m1", add)
    again = rpc_group("travelling")
    again.barrier()
    again.destroy()


def _is_here(group: RpcGroup) -> bool:
    return group.get_cur_name() == "m1" and group.rpc_sync("m1", add, args=(1,)) == 1


def _use_from_outside(group: RpcGroup) -> None:
    """Who is not in a group may call its members, as in machin, and have no part in it."""
    assert not group.is_member()
    assert group.rpc_sync("m1", add, args=(1,)) == 1
    uses: list[Callable[[], object]] = [
        lambda: group.pair("x", 1),
        lambda: group.unpair("x"),
        lambda: group.register("x", add),
        lambda: group.deregister("x"),
        group.barrier,
        group.destroy,
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match="is not in group 'pair'"):
            use()


def the_name_of_all() -> None:
    """A group may be called as that of all members of a runtime is."""
    group = rpc_group("world")
    assert group.get_group_name() == "world"
    assert group.rpc_sync("m1", _named, args=(group,)) == "world"
    group.barrier()
    group.destroy()


def _named(group: RpcGroup) -> str:
    group.is_paired("x")
    return group.get_group_name()


def threads() -> None:
    """All threads of a member may use the world."""
    group = rpc_group("threads")
    failed: list[BaseException] = []

    def use(number: int) -> None:
        try:
            own = here().create_rpc_group(f"thread {number}", ["m0", "m1", "m2"])
            own.pair(get_cur_name(), number)
            own.barrier()
            found = [own.get_paired(name).to_here() for name in own.get_group_members()]
            assert found == [number] * SIZE
            assert group.rpc_sync("m1", add, args=(number, 1)) == number + 1
            own.barrier()
            own.destroy()
        except BaseException as error:  # noqa: BLE001 - the test is told
            failed.append(error)

    running = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    assert not failed
    group.barrier()


def script_functions() -> None:
    """Functions in TorchScript are sent by module and name."""
    import compat_distributed_scripts as scripts

    group = rpc_group("scripts")
    ones = torch.ones(2)
    assert group.rpc_sync("m1", scripts.script_add, args=(ones, ones)).tolist() == [2, 2]
    assert group.rpc_async("m1", scripts.script_add, args=(ones, ones)).wait().tolist() == [2, 2]
    assert group.remote("m1", scripts.script_add, args=(ones, ones)).to_here().tolist() == [2, 2]
    assert group.rpc_sync("m2", scripts.other_name, args=(ones,)).tolist() == [-1, -1]
    with pytest.raises(RpcException, match="'inner' of module 'compat_distributed_scripts' is not"):
        group.rpc_sync("m2", scripts.made_inside(), args=(ones,))
    group.barrier()


def without(what: str) -> None:
    with pytest.raises(RuntimeError, match=f"made with {what}=False"):
        rpc_group("x") if what == "init_rpc" else all_ranks()
    if what == "init_rpc":
        all_ranks().barrier()
    else:
        rpc_group("x").barrier()


# -- ends -----------------------------------------------------------------------------------------


def hold(name: str) -> None:
    """Hold names, until this member ends."""
    group = rpc_group(name)
    if get_cur_name() == "m1":
        group.pair("value", 1)
        group.register("service", add)
    group.barrier()


def sleep_for_ever() -> None:
    threading.Event().wait()


def wait_for(victim: str, name: str) -> list[str]:
    """Wait for a member in every way, and tell what each way raises."""
    group = here()._groups[name]
    told = []
    for waiting in (
        lambda: group.rpc_sync(victim, sleep_for_ever, 0),
        lambda: group.rpc_async(victim, add, 0).wait(),
        lambda: group.remote(victim, add, 0).to_here(None),
        group.barrier,
        lambda: here().create_rpc_group("later", ["m0", "m1", "m2"]),
        lambda: here().create_collective_group([0, 1, 2]),
    ):
        try:
            waiting()
        except PeerLostError as error:
            told.append(str(error))
    return told


def free_again(name: str) -> bool:
    """Take the names that a lost member has held, and use them from another."""
    group = here()._groups[name]
    if get_cur_rank() == 0:
        group.pair("value", 2)
        group.register("service", lambda: 3)
    return bool(group.rpc_sync("m0", add, args=(1,)) == 1)


def found_again(name: str) -> tuple[int, int]:
    group = here()._groups[name]
    return group.get_paired("value").to_here(), group.registered_sync("service")


def meet_until_lost(backend: str, to_the_end: bool) -> str:
    """Return what a barrier, that waits for a member which dies, raises."""
    group = all_ranks(backend=backend)
    group.barrier()
    if not to_the_end:
        return "here"
    try:
        group.barrier()
    except PeerLostError as error:
        return str(error)
    return "nothing"


def wait_for_free_names(name: str) -> None:
    group = here()._groups[name]
    until(lambda: not group.is_paired("value"), "the name of a dead member is not free")
    until(lambda: not group.is_registered("service"), "the service of a dead member is there")


def barriers(count: int) -> int:
    """Come early and late to many barriers in a row."""
    group = rpc_group(f"barriers {count}")
    for number in range(count):
        if number % SIZE == get_cur_rank():
            time.sleep(0)  # lets the others come first
        group.barrier()
    return count


def rpc_group_of_lost(names: Sequence[str]) -> str:
    with pytest.raises(PeerLostError) as found:
        rpc_group("lost", names)
    return str(found.value)
