"""Programs of the collective suite: groups of some of the members, and objects."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pparallel.errors import ClosedError, SerializationError
from pparallel.interfaces.collective import Collective, ReduceOp
from pparallel.testing.collective.messages import number
from pparallel.testing.collective.samples import combined, finish, same, sample, samples
from pparallel.testing.patience import PATIENCE

if TYPE_CHECKING:
    from pparallel.builder import Runtime


def global_ranks(rt: Runtime, device: str) -> None:
    """Members of a group are called by their global ranks, and counted by their position."""
    if rt.rank in (1, 2, 4):
        _in_a_group(rt, rt.collective.new_group([4, 1, 2]), device)
    rt.collective.barrier()


def _in_a_group(rt: Runtime, group: Collective, device: str) -> None:
    assert (group.rank, group.size(), list(group.ranks)) == (rt.rank, 3, [1, 2, 4])
    tensor = sample(rt.rank, device=device)
    group.broadcast(tensor, src=4)
    same(tensor, sample(4, device=device), "broadcast in a group")
    tensor = sample(rt.rank, device=device)
    group.reduce(tensor, dst=2)
    mine = [rt.rank] if rt.rank != 2 else [1, 2, 4]
    same(tensor, combined(ReduceOp.SUM, samples(mine, device=device)), "reduce in a group")
    assert group.gather_object(rt.rank, dst=4) == ([1, 2, 4] if rt.rank == 4 else None)
    assert group.scatter_object(["a", "b", "c"], src=1) == {1: "a", 2: "b", 4: "c"}[rt.rank]
    with pytest.raises(ValueError, match="rank 3 is not in this group"):
        group.broadcast(tensor, src=3)
    if rt.rank != 2:
        pair = group.new_group([1, 4])
        told = pair.broadcast_object(f"from {rt.rank}", src=4)
        assert told == "from 4"
        pair.destroy()
    assert group.all_gather_object(rt.rank) == [1, 2, 4]


def groups_apart(rt: Runtime, device: str) -> None:
    """Two groups of the same members, and all of them: each has messages of its own."""
    world, other = rt.collective, 1 - rt.rank
    groups = [world, world.new_group([0, 1]), world.new_group([0, 1])]
    groups.append(groups[1].new_group([0, 1]))
    if rt.rank == 0:
        for at in range(5):
            for which, group in enumerate(groups):
                group.send(number(10 * at + which, device), other)
    else:
        for which, group in reversed([*enumerate(groups)]):
            for at in range(5):
                tensor = number(-1, device)
                group.recv(tensor, other)
                assert tensor.item() == 10 * at + which, "a message of another group"
    turned = groups if rt.rank == 0 else groups[::-1]
    tensors = {id(group): number(rt.rank + groups.index(group), device) for group in groups}
    works = [group.all_reduce(tensors[id(group)], async_op=True) for group in turned]
    for each in works:
        finish(each, True)
    sums = [int(tensors[id(group)]) for group in groups]
    assert sums == [1, 3, 5, 7], "operations of several groups were mixed up"


def destroyed(rt: Runtime, device: str) -> None:
    world = rt.collective
    group = world.new_group([0, 1])
    group.barrier()
    group.destroy()
    group.destroy()
    with pytest.raises(ClosedError):
        group.isend(number(0, device), 1 - rt.rank)
    with pytest.raises(ClosedError):
        group.barrier()
    with pytest.raises(ClosedError):
        group.new_group([0, 1])
    with world.new_group([0, 1]) as again:
        assert again.all_gather_object(rt.rank) == [0, 1]
    with pytest.raises(ClosedError):
        again.barrier()
    world.barrier()


def objects(rt: Runtime) -> None:
    group, size, last = rt.collective, rt.world_size, rt.world_size - 1
    assert group.broadcast_object({"from": rt.rank}, src=last) == {"from": last}
    assert group.all_gather_object(["x"] * rt.rank) == [["x"] * each for each in range(size)]
    gathered = group.gather_object(rt.rank, dst=last)
    assert gathered == ([*range(size)] if rt.rank == last else None)
    parts = [f"for {each}" for each in range(size)]
    assert group.scatter_object(parts if rt.rank == 0 else None) == f"for {rt.rank}"
    mine = bytearray(b"mine")
    received: list[bytearray] = group.all_gather_object(mine)
    received[0] += b" and yours"
    group.barrier()
    assert mine == b"mine", "an object was not copied"


FORMS: dict[str, Callable[[Collective, object], object]] = {
    "broadcast": lambda group, obj: group.broadcast_object(obj, src=1),
    "all_gather": lambda group, obj: group.all_gather_object(obj),
    "scatter": lambda group, obj: group.scatter_object(
        [obj] * group.size() if group.rank == 1 else None, src=1
    ),
    "gather": lambda group, obj: group.gather_object(obj, dst=0),
}


def unsendable(rt: Runtime, form: str) -> str:
    """Return what this member is told of an object that rank 1 cannot send."""
    obj: Any = threading.Lock() if rt.rank == 1 else "fine"
    error = ""
    try:
        FORMS[form](rt.collective, obj)
    except SerializationError as raised:
        error = str(raised)
    assert rt.collective.all_gather_object(rt.rank) == [*range(rt.world_size)]
    return error


def slow_root(rt: Runtime, device: str) -> None:
    """The handle of an operation that cannot be done yet says so, and its wait does not return."""
    group = rt.collective
    tensor = number(rt.rank, device)
    go = group.new_group([0, 1])
    if rt.rank == 0:
        waiting = go.irecv(number(0, device), 1)
        work = group.broadcast(tensor, 1, async_op=True)
        assert work is not None
        for each in (work, waiting):
            assert not each.is_completed()
            with pytest.raises(TimeoutError):
                each.wait(0.05)
        go.send(number(1, device), 1)
        finish(work, True)
        assert tensor.item() == 1, "wait returned before its tensor was filled"
        assert waiting.wait(PATIENCE) == 1
    else:
        go.recv(number(0, device), 0)
        group.broadcast(tensor, 1)
        go.send(number(2, device), 0)
