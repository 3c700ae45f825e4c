"""What members do in the tests of the collective `shm`."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pparallel.builder import Runtime
from pparallel.errors import ClosedError, PparallelError
from pparallel.interfaces.collective import Collective, ReduceOp
from pparallel.testing.patience import PATIENCE, until
from pparallel_shm.collective import ShmCollective
from pparallel_shm.memory import NAME

# -- random sequences, against a reference --------------------------------------------------------


class Step(NamedTuple):
    """One operation of a sequence: which, on how many numbers, of which dtype, at which root."""

    name: str
    numel: int
    dtype: str
    root: int
    how: ReduceOp
    async_op: bool
    turned: bool


NAMES = (
    "all_reduce",
    "coalesced",
    "reduce",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
)
DTYPES = ("float32", "float64", "int64", "uint8", "bool", "bfloat16", "complex64", "complex128")
HOWS = (ReduceOp.SUM, ReduceOp.PRODUCT)


def values(seed: int, step: Step) -> Tensor:
    """Return small whole numbers, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, step.numel) if step.turned else (step.numel,)
    found = torch.randint(0, 3, shape, generator=generator).to(getattr(torch, step.dtype))
    return found.T if step.turned else found


def perform(group: Collective, steps: Sequence[Step]) -> None:
    """Do one operation after the other, and compare what comes of each."""
    checks = [_begun(group, step, 1000 * at) for at, step in enumerate(steps)]
    for step, check in zip(steps, checks, strict=True):
        assert check(), f"{step} went wrong in rank {group.rank}"


def _begun(group: Collective, step: Step, seed: int) -> Callable[[], bool]:
    """Begin an operation; return what waits for it, and says whether it has done right."""
    size, me = group.size(), group.rank
    root = step.root % size
    mine = values(seed + me, step).clone()
    everyone = [values(seed + each, step) for each in range(size)]
    lists = [[values(seed + 10 * each + to, step) for to in range(size)] for each in range(size)]
    parts, room = lists[me], [torch.zeros_like(mine) for _ in range(size)]
    target, several = torch.zeros_like(mine), [mine.clone(), mine[:1].clone(), mine.clone()]
    total, own = _total(step.how, everyone), [each[me] for each in lists]
    runs: dict[str, tuple[Callable[[], Any], list[Tensor], list[Tensor]]] = {
        "all_reduce": (
            lambda: group.all_reduce(mine, step.how, async_op=step.async_op),
            [mine],
            [total],
        ),
        "coalesced": (
            lambda: group.all_reduce_coalesced(several, step.how, async_op=step.async_op),
            several,
            [total, total[:1], total],
        ),
        "reduce": (
            lambda: group.reduce(mine, root, step.how, async_op=step.async_op),
            [mine],
            [total if me == root else everyone[me]],
        ),
        "broadcast": (
            lambda: group.broadcast(mine, root, async_op=step.async_op),
            [mine],
            [everyone[root]],
        ),
        "all_gather": (
            lambda: group.all_gather(room, mine, async_op=step.async_op),
            room,
            everyone,
        ),
        "gather": (
            lambda: group.gather(mine, room if me == root else None, root, async_op=step.async_op),
            room,
            everyone if me == root else [torch.zeros_like(mine)] * size,
        ),
        "scatter": (
            lambda: group.scatter(
                target, parts if me == root else None, root, async_op=step.async_op
            ),
            [target],
            [lists[root][me]],
        ),
        "reduce_scatter": (
            lambda: group.reduce_scatter(target, parts, step.how, async_op=step.async_op),
            [target],
            [_total(step.how, own)],
        ),
        "all_to_all": (
            lambda: group.all_to_all(room, parts, async_op=step.async_op),
            room,
            own,
        ),
        "barrier": (lambda: group.barrier(async_op=step.async_op), [], []),
    }
    begin, found, expected = runs[step.name]
    work = begin()

    def check() -> bool:
        if work is not None:
            work.wait(PATIENCE)
        return all(map(torch.equal, found, expected))

    return check


def _total(how: ReduceOp, tensors: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add if how is ReduceOp.SUM else torch.mul, tensors)


def sequences(rt: Runtime, plans: Sequence[Sequence[Step]]) -> None:
    """Do sequence after sequence."""
    for each in plans:
        perform(rt.collective, each)


def at_random(rt: Runtime, count: int, slot: int, seed: int = 7) -> None:
    """Do many operations, of sizes around those of slots, drawn the same in all members."""
    draw = random.Random(seed)
    for _ in range(count // 20):
        steps = [
            Step(
                draw.choice(NAMES),
                max(0, draw.choice([0, 1, 5, 100, slot, 2 * slot, 3 * slot]) + draw.randint(-2, 2)),
                draw.choice(DTYPES),
                draw.randrange(8),
                draw.choice(HOWS),
                draw.random() < 0.3,
                draw.random() < 0.2,
            )
            for _ in range(20)
        ]
        perform(rt.collective, steps)


# -- many members ---------------------------------------------------------------------------------


def crowd(rt: Runtime, rounds: int) -> float:
    """Be one of more members than there are cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    tensor, large = torch.ones(10), torch.ones(300_000)
    for _ in range(rounds):
        rt.collective.barrier()
        rt.collective.all_reduce(tensor.fill_(1.0))
        rt.collective.all_reduce(large, ReduceOp.MAX)
    return float(tensor.sum() + large.sum())


# -- members that die, stop, or are interrupted ---------------------------------------------------


def told(operation: Callable[[], object]) -> str:
    """Return what *operation* raises, as type and message."""
    try:
        operation()
    except (PparallelError, ValueError, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def reduce_without_end(rt: Runtime, under_way: Path) -> tuple[str, str, str]:
    """Sum large tensors until somebody dies; return what is told then, and later."""
    torch.set_num_threads(1)
    tensor = torch.empty(4_000_000)
    number = 0

    def forever() -> None:
        nonlocal number
        while True:
            number += 1
            rt.collective.all_reduce(tensor.fill_(float(number)))
            assert bool((tensor == number * rt.world_size).all()), "a wrong sum"
            if number == 3:
                under_way.with_name(f"{under_way.name} {rt.name}").touch()

    first = told(forever)
    again = told(lambda: rt.collective.all_reduce(tensor))
    return first, again, told(rt.collective.barrier)


def wait_in_a_barrier(rt: Runtime, waits: Path) -> tuple[str, str]:
    """All but the last go to a barrier to which that never comes."""
    rt.collective.barrier()
    if rt.rank == rt.world_size - 1:
        until(lambda: rt.stopping, "nobody killed this member")
    waits.with_name(f"{waits.name} {rt.name}").touch()
    return told(rt.collective.barrier), told(rt.collective.barrier)


def go_on(rt: Runtime, rounds: int, at: Path) -> int:
    """Sum again and again; tell how far it has come."""
    torch.set_num_threads(1)
    tensor = torch.empty(200_000)
    for number in range(1, rounds + 1):
        rt.collective.all_reduce(tensor.fill_(float(number)))
        assert bool((tensor == number * rt.world_size).all()), "a wrong sum"
        if number % 10 == 0:
            at.with_name(f"{at.name} {number // 10} {rt.name}").touch()
    return rounds


def be_interrupted(rt: Runtime, waits: Path) -> list[str]:
    """The first waits and is interrupted; the second waits as long; the third comes later."""
    signal.signal(signal.SIGUSR1, _interrupt)
    tensor = torch.ones(5)
    rt.collective.barrier()
    if rt.rank == 2:
        until(waits.with_name("told").exists, "the interrupted member did not tell")
    else:
        threading.Thread(target=note_sleep, args=(rt, waits)).start()
    found = [told(lambda: rt.collective.all_reduce(tensor))]
    if rt.rank == 0:
        waits.with_name("told").touch()
    found.append(told(rt.collective.barrier))
    group = rt.collective.new_group(range(3))
    group.all_reduce(tensor.fill_(1.0))
    return [*found, str(tensor[0].item())]


def note_sleep(rt: Runtime, waits: Path) -> None:
    """Note that this member sleeps until others arrive."""
    place = cast("ShmCollective", rt.collective)._place
    assert place is not None
    memory, word = place.memory, place.memory.plan.parked(place.me)
    until(lambda: memory.words[word] == 1, "it does not wait")
    waits.with_name(f"{waits.name} {rt.name}").touch()


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt("enough")


# -- what is left ---------------------------------------------------------------------------------


def mapped() -> int:
    """Return how many such memories this process has mapped."""
    return Path("/proc/self/maps").read_text().count(NAME)


def groups_come_and_go(rt: Runtime) -> list[int]:
    """Return how many memories there are at each step."""
    rt.collective.barrier()
    found = [mapped()]
    with rt.collective.new_group(range(rt.world_size)) as group:
        group.all_reduce(torch.ones(100_000), async_op=True).wait()  # type: ignore[union-attr]
        inner = group.new_group(range(rt.world_size))
        inner.barrier()
        found.append(mapped())
    until(lambda: mapped() == found[0], "the memory of a group that is closed is still mapped")
    held = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    found.append(sum(NAME in each for each in held))
    return found


def fork(rt: Runtime) -> int:
    """Return how a child that was forked ended, which uses the collective."""
    rt.collective.barrier()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            rt.collective.barrier()
        except ClosedError as error:
            code = 0 if "fork" in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    rt.collective.barrier()
    return os.waitstatus_to_exitcode(status)
