"""What the members of jobs on the collective ``gloo`` do, and what is done to them."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

import pparallel
from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError
from pparallel.interfaces.collective import ReduceOp
from pparallel.testing.leftovers import no_leftovers
from pparallel.testing.patience import PATIENCE, until

LARGE = 16_777_216  #: floats: 64 MB


def reduce_for_ever(rt: pparallel.Runtime, noted: Path) -> str:
    """Reduce large tensors until a member is lost; return what is told of it."""
    tensor = torch.ones(LARGE)
    return _told_of_a_loss(rt, noted, lambda: rt.collective.all_reduce(tensor))


def meet_for_ever(rt: pparallel.Runtime, noted: Path) -> str:
    """As :func:`reduce_for_ever`, at barriers; the last member comes once only."""

    def meet() -> None:
        if rt.rank == rt.world_size - 1 and noted.with_suffix(f".{rt.rank}").exists():
            threading.Event().wait()
        rt.collective.barrier()

    return _told_of_a_loss(rt, noted, meet)


def _told_of_a_loss(rt: pparallel.Runtime, noted: Path, work: Callable[[], object]) -> str:
    work()
    noted.with_suffix(f".{rt.rank}").touch()
    told = ""
    while not told:
        try:
            work()
        except PeerLostError as error:
            told = str(error)
    with pytest.raises(PeerLostError):  # the group has ended for good
        work()
    pair = rt.collective.new_group([0, 1])  # those who live make another one
    pair.all_reduce(torch.ones(3))
    return told


def beside_others(rt: pparallel.Runtime, folder: Path) -> None:
    """Two collectives of the job, and process groups that the program makes for itself."""
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rt.rank,
        world_size=rt.world_size,
    )
    critic, tensors = rt["critic"], [torch.full((5,), 10.0**at) for at in range(3)]
    works = [
        rt.collective.all_reduce(tensors[0], async_op=True),
        critic.all_reduce(tensors[1], async_op=True),
        torch.distributed.all_reduce(tensors[2], async_op=True),
    ]
    for each in reversed(works):
        each.wait()
    assert [each[0].item() for each in tensors] == [rt.world_size * 10.0**at for at in range(3)]
    critic.close()
    rt.collective.barrier()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    rt.collective.barrier()
    with pytest.raises(ClosedError):
        critic.barrier()


def leave_early(rt: pparallel.Runtime) -> None:
    """Who has done its part of an operation may leave, however long the others are at it."""
    world = rt.collective
    group, note = world.new_group([0, 1, 2]), torch.zeros(1)
    tensor = torch.full((3,), float(rt.rank))
    everyone = [torch.zeros(3) for _ in range(3)]
    if rt.rank == 0:
        group.gather(tensor, None, 2)
        group.destroy()
        world.send(note, 1)
    elif rt.rank == 1:
        world.recv(note, 0)
        group.gather(tensor, None, 2)
    else:
        group.gather(tensor, everyone, 2)
        assert [each[0].item() for each in everyone] == [0.0, 1.0, 2.0]
    if rt.rank > 0:
        with pytest.raises(PeerLostError, match="'m0' has left the collective"):
            group.all_reduce(tensor)
    world.barrier()


def give_up_in_a_group(rt: pparallel.Runtime) -> None:
    """One member waits in vain: it and the other are told, and other groups go on."""
    world = rt.collective
    pair, other = world.new_group([0, 1]), world.new_group([0, 1])
    tensor = torch.zeros(3)
    if rt.rank == 0:
        with pytest.raises(CallTimeoutError, match="all_reduce was not answered") as caught:
            pair.all_reduce(tensor)
        assert caught.value.__cause__ is not caught.value
        rt.group().barrier(PATIENCE)
    else:
        rt.group().barrier(PATIENCE)
        with pytest.raises(CallTimeoutError, match="all_reduce of member 'm0', which gave up"):
            pair.all_reduce(tensor)
    with pytest.raises(CallTimeoutError):
        pair.barrier()
    assert other.all_gather_object(rt.rank) == [0, 1]
    other.all_reduce(tensor)
    world.all_reduce(tensor)


def wait_twice(rt: pparallel.Runtime) -> None:
    """A time-out of the caller's own ends the wait and not the operation."""
    tensor = torch.full((4,), 1.0 + rt.rank)[::2]
    if rt.rank == 0:
        work: Any = rt.collective.all_reduce(tensor, ReduceOp.AVG, async_op=True)
        for _ in range(2):
            with pytest.raises(CallTimeoutError):
                work.wait(0.02)
            assert not work.is_completed()
        rt.collective.send(tensor, 1)
        work.wait()
        work.wait(0.01)
        assert work.is_completed()
    else:
        rt.collective.recv(torch.zeros(2), 0)
        rt.collective.all_reduce(tensor, ReduceOp.AVG)
    assert tensor.tolist() == [1.5, 1.5]


def leave_nothing(rt: pparallel.Runtime) -> None:
    """Make groups, leave operations underway in them, and close them."""
    world = rt.collective
    torch.set_num_threads(1)  # those of a large machine would start when they are first of use
    world.barrier()
    native = len(os.listdir("/proc/self/task"))
    with no_leftovers():
        for _ in range(3):
            group = world.new_group([0, 1])
            group.all_reduce(torch.ones(3))
            left = group.all_reduce(torch.ones(LARGE), async_op=True) if rt.rank == 0 else None
            inner = group.new_group([0, 1])
            inner.barrier()
            group.destroy()
            if left is not None:
                with pytest.raises(ClosedError):
                    left.wait()
            with pytest.raises(ClosedError):
                inner.barrier()
        gc.collect()
    until(lambda: len(os.listdir("/proc/self/task")) <= native, "gloo's threads are left")
    world.barrier()


def mixed_up(rt: pparallel.Runtime, what: str) -> str:
    """Begin what does not fit to what the other begins; return what this member is told."""
    world, one = rt.collective, rt.rank == 1
    tensor = torch.zeros(4)
    calls: dict[str, Callable[[], object]] = {
        "operation": lambda: world.barrier() if one else world.all_reduce(tensor),
        "root": lambda: world.broadcast(tensor, rt.rank),
        "shape": lambda: world.all_reduce(tensor[: 3 + rt.rank]),
        "dtype": lambda: world.all_reduce(tensor.double() if one else tensor),
        "count": lambda: world.all_reduce_coalesced(list(torch.zeros(1 + rt.rank, 4))),
        "device": lambda: world.all_reduce(tensor.to("meta") if one else tensor),
        "parts": lambda: world.scatter(tensor, [tensor[:2]] * 2 if rt.rank == 0 else None, 0),
        "shapes": lambda: world.all_gather([torch.zeros(1), torch.zeros(2 + rt.rank)], tensor[:1]),
        "own": lambda: world.all_gather([torch.zeros(1), torch.zeros(2)], tensor[:1]),
        "pair": lambda: world.all_to_all(list(torch.zeros(2, 2)), tensor.split([2 - one, 2 + one])),
        "handle": lambda: _awaited(world.all_reduce(tensor[: 3 + rt.rank], async_op=True)),
    }
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its message is looked at
        calls[what]()
    world.all_reduce(tensor)
    return str(caught.value)


def _awaited(work: Any) -> None:
    work.wait()


def dtypes(rt: pparallel.Runtime) -> None:
    """What gloo does not know: it is done all the same."""
    world, size = rt.collective, rt.world_size
    for dtype in (torch.int16, torch.uint16, torch.float8_e5m2):
        tensor = torch.full((3,), 1 + rt.rank, dtype=torch.float32).to(dtype)
        everyone = [torch.zeros_like(tensor) for _ in range(size)]
        world.all_gather(everyone, tensor)
        assert [each.float()[0].item() for each in everyone] == [1.0 + at for at in range(size)]
        world.broadcast(tensor, size - 1)
        assert tensor.float().tolist() == [size] * 3
    short = torch.full((3,), 1 + rt.rank, dtype=torch.int16)
    world.all_reduce(short)
    assert short.tolist() == [size * (size + 1) // 2] * 3
    turned = torch.full((2,), complex(0, 1), dtype=torch.complex64)
    world.all_reduce(turned, ReduceOp.PRODUCT)
    assert turned.tolist() == [complex(0, 1) ** size] * 2
