"""Programs of the collective suite: the operations of all members, against a reference."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pparallel.interfaces.collective import ReduceOp
from pparallel.testing.collective.samples import (
    LARGE,
    applicable,
    combined,
    finish,
    room,
    same,
    sample,
    samples,
)

if TYPE_CHECKING:
    from torch import Tensor

    from pparallel.builder import Runtime

BOTH = (False, True)


def all_reduce(rt: Runtime, device: str, dtypes: Sequence[str]) -> None:
    for dtype in dtypes:
        everyone = samples(range(rt.world_size), dtype, device)
        for op in applicable(dtype):
            for async_op in BOTH:
                tensor = sample(rt.rank, dtype, device)
                finish(rt.collective.all_reduce(tensor, op, async_op=async_op), async_op)
                same(tensor, combined(op, everyone), f"all_reduce by {op.name}")


def all_reduce_coalesced(rt: Runtime, device: str, dtypes: Sequence[str]) -> None:
    for op in (ReduceOp.SUM, ReduceOp.MAX):
        chosen = [each for each in dtypes if op in applicable(each)]
        for async_op in BOTH:
            tensors = [sample(rt.rank, each, device) for each in chosen for _ in BOTH]
            turned = [sample(rt.rank, each, device).T for each in chosen]
            work = rt.collective.all_reduce_coalesced([*tensors, *turned], op, async_op=async_op)
            finish(work, async_op)
            for number, dtype in enumerate(chosen):
                expected = combined(op, samples(range(rt.world_size), dtype, device))
                what = f"all_reduce_coalesced by {op.name}"
                same(tensors[2 * number], expected, what)
                same(tensors[2 * number + 1], expected, what)
                same(turned[number], expected.T, what)
    rt.collective.all_reduce_coalesced([])


def all_gather(rt: Runtime, device: str, dtypes: Sequence[str]) -> None:
    for number, dtype in enumerate(dtypes):
        mine, async_op = sample(rt.rank, dtype, device), bool(number % 2)
        into = room(rt.world_size, dtype, device)
        finish(rt.collective.all_gather(into, mine, async_op=async_op), async_op)
        same(into, samples(range(rt.world_size), dtype, device), "all_gather")


def reduce(rt: Runtime, device: str, dtypes: Sequence[str]) -> None:
    for number, dtype in enumerate(dtypes):
        everyone = samples(range(rt.world_size), dtype, device)
        dst, async_op = number % rt.world_size, bool(number % 2)
        for op in applicable(dtype):
            tensor = sample(rt.rank, dtype, device)
            finish(rt.collective.reduce(tensor, dst, op, async_op=async_op), async_op)
            expected = combined(op, everyone) if rt.rank == dst else everyone[rt.rank]
            same(tensor, expected, f"reduce by {op.name}")


def broadcast(rt: Runtime, device: str, dtypes: Sequence[str]) -> None:
    for dtype in dtypes:
        for src in range(rt.world_size):
            async_op = bool(src % 2)
            tensor = sample(rt.rank, dtype, device)
            finish(rt.collective.broadcast(tensor, src, async_op=async_op), async_op)
            same(tensor, sample(src, dtype, device), "broadcast")


def gather(rt: Runtime, device: str, dtypes: Sequence[str]) -> None:
    for number, dtype in enumerate(dtypes):
        dst, async_op = number % rt.world_size, bool(number % 2)
        mine = sample(rt.rank, dtype, device)
        everyone = samples(range(rt.world_size), dtype, device)
        into = room(rt.world_size, dtype, device)
        given = into if rt.rank == dst else None
        finish(rt.collective.gather(mine, given, dst, async_op=async_op), async_op)
        expected = everyone if rt.rank == dst else room(rt.world_size, dtype, device)
        same(into, expected, "gather")
        finish(rt.collective.all_gather(into, mine, async_op=async_op), async_op)
        same(into, everyone, "all_gather")
        same(mine, everyone[rt.rank], "what was gathered")


def scatter(rt: Runtime, device: str, dtypes: Sequence[str]) -> None:
    for number, dtype in enumerate(dtypes):
        src, async_op = number % rt.world_size, bool(number % 2)
        given = samples(range(10, 10 + rt.world_size), dtype, device)
        part = sample(rt.rank, dtype, device)
        parts = given if rt.rank == src else None
        finish(rt.collective.scatter(part, parts, src, async_op=async_op), async_op)
        same(part, sample(10 + rt.rank, dtype, device), "scatter")
        same(given, samples(range(10, 10 + rt.world_size), dtype, device), "what was scattered")


def all_to_all(rt: Runtime, device: str, dtypes: Sequence[str]) -> None:
    ranks = range(rt.world_size)
    for async_op in BOTH:
        for dtype in dtypes:
            given = samples([100 * rt.rank + to for to in ranks], dtype, device)
            swapped = room(rt.world_size, dtype, device)
            finish(rt.collective.all_to_all(swapped, given, async_op=async_op), async_op)
            same(swapped, samples([100 * source + rt.rank for source in ranks], dtype, device), "")
            same(given, samples([100 * rt.rank + to for to in ranks], dtype, device), "its input")


def reduce_scatter(rt: Runtime, device: str, dtypes: Sequence[str]) -> None:
    ranks = range(rt.world_size)
    for number, dtype in enumerate(dtypes):
        async_op = bool(number % 2)
        for op in applicable(dtype):
            given = samples([rt.rank + 7 * to for to in ranks], dtype, device)
            (output,) = room(1, dtype, device)
            finish(rt.collective.reduce_scatter(output, given, op, async_op=async_op), async_op)
            mine = samples([source + 7 * rt.rank for source in ranks], dtype, device)
            same(output, combined(op, mine), f"reduce_scatter by {op.name}")
            same(given, samples([rt.rank + 7 * to for to in ranks], dtype, device), "its input")


def each(rt: Runtime, device: str, dtypes: Sequence[str]) -> None:
    """Do each operation of a group, one after another."""
    for program in (
        all_reduce,
        all_reduce_coalesced,
        all_gather,
        reduce,
        broadcast,
        gather,
        scatter,
        all_to_all,
        reduce_scatter,
    ):
        program(rt, device, dtypes)


def multigpu(rt: Runtime, device: str) -> None:
    for async_op in BOTH:
        _multigpu(rt, device, async_op)


def _multigpu(rt: Runtime, device: str, async_op: bool) -> None:
    group, last = rt.collective, rt.world_size - 1

    def pair() -> list[Tensor]:
        return samples([10 * rt.rank, 10 * rt.rank + 1], device=device)

    everything = samples([10 * each + at for each in range(rt.world_size) for at in (0, 1)])
    everything = [each.to(device) for each in everything]
    told, total, mean, at_one = (pair() for _ in range(4))
    finish(group.broadcast_multigpu(told, last, async_op=async_op, src_tensor=1), async_op)
    same(told, [everything[-1]] * 2, "broadcast_multigpu")
    finish(group.all_reduce_multigpu(total, async_op=async_op), async_op)
    same(total, [combined(ReduceOp.SUM, everything)] * 2, "all_reduce_multigpu")
    finish(group.all_reduce_multigpu(mean, ReduceOp.AVG, async_op=async_op), async_op)
    same(mean, [combined(ReduceOp.AVG, everything)] * 2, "all_reduce_multigpu by AVG")
    finish(group.reduce_multigpu(at_one, last, async_op=async_op, dst_tensor=1), async_op)
    own = pair()
    expected = [own[0], total[0]] if rt.rank == last else own
    same(at_one, expected, "reduce_multigpu")
    outputs = [room(len(everything), device=device) for _ in range(2)]
    finish(group.all_gather_multigpu(outputs, pair(), async_op=async_op), async_op)
    for each in outputs:
        same(each, everything, "all_gather_multigpu")


def strides(rt: Runtime, device: str) -> None:
    """Members' tensors have the same shape but not the same strides."""
    import torch

    group, size = rt.collective, rt.world_size
    everyone = samples(range(size), device=device)
    total = combined(ReduceOp.SUM, everyone)
    turned = everyone[rt.rank].T.contiguous().T if rt.rank % 2 else everyone[rt.rank].clone()
    group.all_reduce(turned)
    same(turned, total, "all_reduce of a transposed tensor")
    wide = torch.full((3, 8), 9.0, device=device)
    wide[:, ::2] = everyone[rt.rank]
    group.reduce(wide[:, ::2], 0)
    same(wide[:, ::2], total if rt.rank == 0 else everyone[rt.rank], "reduce of every second")
    same(wide[:, 1::2], torch.full((3, 4), 9.0, device=device), "what lies between")
    columns = torch.zeros(4, 3, size, device=device)
    group.all_gather([columns[..., at].T for at in range(size)], everyone[rt.rank])
    same([columns[..., at].T for at in range(size)], everyone, "all_gather into columns")
    scalar = torch.tensor(float(rt.rank), device=device)
    group.all_reduce(scalar, ReduceOp.MAX)
    assert scalar.item() == size - 1
    nothing = torch.empty(0, 3, device=device)
    group.broadcast(nothing, size - 1)
    group.all_reduce(nothing)
    assert nothing.shape == (0, 3)


def views(rt: Runtime, device: str) -> None:
    """Conjugated and negated views, and what requires a gradient."""
    import torch

    group, last = rt.collective, rt.world_size - 1
    conjugated = sample(rt.rank, "complex64", device).conj()
    group.broadcast(conjugated, last)
    expected = sample(last, "complex64", device).conj_physical()
    same(conjugated.resolve_conj(), expected, "broadcast of a conjugated view")
    negated = sample(rt.rank, "complex64", device).conj().imag
    group.all_reduce(negated)
    ranks = range(rt.world_size)
    parts = [-each.imag for each in samples(ranks, "complex64", device)]
    same(negated.resolve_neg(), combined(ReduceOp.SUM, parts), "all_reduce of a negated view")
    recorded = torch.nn.Parameter(sample(rt.rank, device=device))
    group.all_reduce(recorded, ReduceOp.AVG)
    same(recorded.data, combined(ReduceOp.AVG, samples(ranks, device=device)), "a parameter")
    assert recorded.requires_grad
    assert recorded.grad_fn is None
    with torch.inference_mode():
        inferred = sample(rt.rank, device=device).T
        group.broadcast(inferred, 0)
        same(inferred, sample(0, device=device).T, "broadcast in inference mode")


def large(rt: Runtime, device: str) -> None:
    import torch

    group, size = rt.collective, rt.world_size
    tensor = torch.arange(LARGE, dtype=torch.float32, device=device) % 1000 + rt.rank
    start = tensor.clone()
    group.all_reduce(tensor)
    ranks = sum(range(size))
    same(tensor, (start - rt.rank) * size + ranks, "all_reduce of a large tensor")
    group.broadcast(tensor.copy_(start), size - 1)
    same(tensor, start - rt.rank + size - 1, "broadcast of a large tensor")
    everyone = [torch.empty_like(start) for _ in range(size)]
    group.all_gather(everyone, start)
    for at, each in enumerate(everyone):
        same(each, start - rt.rank + at, "all_gather of large tensors")


def fingerprint(rt: Runtime, device: str, numbers: int) -> list[str]:
    """Return digests of what all_reduce makes of numbers whose sum depends on the order."""
    import torch

    digests = []
    for dtype in (torch.float32, torch.float16):
        generator = torch.Generator().manual_seed(rt.rank)
        values = torch.randn(numbers, generator=generator) * 10.0 ** (rt.rank - 2)
        for op in (ReduceOp.SUM, ReduceOp.AVG):
            tensor = values.to(dtype).to(device)
            rt.collective.all_reduce(tensor, op)
            digests.append(hashlib.sha256(tensor.cpu().numpy().tobytes()).hexdigest())
    return digests


def barriers(rt: Runtime, directory: Path, rounds: int) -> None:
    """In each round another member is late, and looks whether anybody has passed without it."""
    for number in range(rounds):
        if number % rt.world_size == rt.rank:
            threading.Event().wait(0.005)
            passed = [each.name for each in directory.glob(f"{number}-passed-*")]
            assert not passed, "a barrier let a member pass before all had come"
        (directory / f"{number}-came-{rt.rank}").touch()
        rt.collective.barrier()
        (directory / f"{number}-passed-{rt.rank}").touch()
        came = len([*directory.glob(f"{number}-came-*")])
        assert came == rt.world_size, "a barrier let a member pass before all had come"


def overlapping(rt: Runtime, device: str) -> None:
    group, size = rt.collective, rt.world_size
    tensors = [sample(100 * at + rt.rank, device=device) for at in range(10)]
    handles = [group.all_reduce(each, async_op=True) for each in tensors]
    message = sample(rt.rank, device=device)
    sent = group.isend(message, (rt.rank + 1) % size)
    received = sample(0, device=device)
    assert group.recv(received, (rt.rank - 1) % size) == (rt.rank - 1) % size
    sent.wait()
    same(received, sample((rt.rank - 1) % size, device=device), "a message beside operations")
    for handle in reversed(handles):
        finish(handle, True)
    for at, tensor in enumerate(tensors):
        seeds = [100 * at + each for each in range(size)]
        same(tensor, combined(ReduceOp.SUM, samples(seeds, device=device)), "one of ten")


def aliases(rt: Runtime, device: str) -> None:
    """Change what came, and look whether anybody else's tensors change with it."""
    group, size = rt.collective, rt.world_size
    mine = sample(rt.rank, device=device)
    everyone = room(size, device=device)
    group.all_gather(everyone, mine)
    (told,) = room(1, device=device)
    group.broadcast(mine if rt.rank == 0 else told, 0)
    (part,) = room(1, device=device)
    parts = samples(range(size), device=device)
    group.scatter(part, parts if rt.rank == 0 else None, 0)
    group.barrier()
    for each in (*everyone, told, part):
        each.fill_(-1 - rt.rank)
    group.barrier()
    same(mine, sample(rt.rank, device=device), "what was given to all_gather and broadcast")
    same(parts, samples(range(size), device=device), "what was given to scatter")
    for each in (*everyone, told, part):
        assert (each == -1 - rt.rank).all(), "two members received the same memory"
