"""Programs of the collective suite: lists of tensors that share memory, and of several shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pparallel.interfaces.collective import ReduceOp
from pparallel.testing.collective.samples import LARGE, combined, finish, same, sample, sawtooth

if TYPE_CHECKING:
    from torch import Tensor

    from pparallel.builder import Runtime


def outputs_that_share_memory(rt: Runtime, device: str) -> None:
    """Every member is refused such a list at once, and the group goes on."""
    import torch

    group, size = rt.collective, rt.world_size
    given = torch.full((6,), float(rt.rank), device=device)
    inputs = [given.clone() for _ in range(size)]
    room = torch.zeros(6 * size, device=device)
    lists: dict[str, list[Tensor]] = {
        "one tensor twice": [room[:6]] * size,
        "overlapping slices": [room[5 * at :][:6] for at in range(size)],
        "a column and its matrix": [room[: 2 * size : 2], room[: 2 * size], *inputs[2:]],
        "an element and its matrix": [room[2:][::2], room.view(6, size)[:2], *inputs[2:]],
    }
    for name, several in lists.items():
        calls: list[Callable[[], object]] = [
            partial(group.all_gather, several, given),
            partial(group.all_to_all, several, inputs),
            partial(group.all_reduce_coalesced, several),
            partial(group.all_gather_multigpu, [several], [given]),
        ]
        if len({each.shape for each in several}) == 1 and rt.rank == 0:
            calls.append(partial(group.gather, given, several))
        for call in calls:
            with pytest.raises(ValueError, match=r"entries 0 and 1 of \w+ share memory"):
                call()
            same(given, torch.full((6,), float(rt.rank), device=device), name)
    group.all_gather([room[at::size] for at in range(size)], given)
    same(room.view(6, size), torch.arange(size, device=device).float().expand(6, size), "columns")


def inputs_that_share_memory(rt: Runtime, device: str) -> None:
    """Whatever is sent is what it was when the operation began; also where it takes long."""
    for count in (5, LARGE):
        for async_op in (False, True):
            _Shared(rt, device, count, async_op=async_op).check()


class _Shared:
    """Operations whose inputs lie where outputs do, on tensors of *count* elements."""

    def __init__(self, rt: Runtime, device: str, count: int, *, async_op: bool) -> None:
        self._group, self._me, self._size = rt.collective, rt.rank, rt.world_size
        self._device, self._count, self._async_op = device, count, async_op
        self._base = sawtooth(count, device)

    def check(self) -> None:
        """Do each operation in place, and in places of others."""
        import torch

        group, me, size, begun = self._group, self._me, self._size, {"async_op": self._async_op}
        ranks = range(size)
        everyone = [self._values(at) for at in ranks]
        for at in (0, size - 1, me):
            into = [torch.zeros_like(each) for each in everyone]
            into[at].copy_(everyone[me])
            finish(group.all_gather(into, into[at], **begun), self._async_op)
            same(into, everyone, f"all_gather of the output of {at}")
            if me == 0:
                into = [torch.zeros_like(each) for each in everyone]
                into[at].copy_(everyone[me])
            given = into[at] if me == 0 else everyone[me].clone()
            finish(group.gather(given, into if me == 0 else None, 0, **begun), self._async_op)
            same(into, everyone, f"gather of the output of {at}")
            parts = [each.clone() for each in everyone]
            part = parts[at] if me == 0 else torch.zeros_like(parts[0])
            finish(group.scatter(part, parts if me == 0 else None, 0, **begun), self._async_op)
            same(part, everyone[me], f"scatter into the part of {at}")
            parts = [self._values(10 * me + to) for to in ranks]
            finish(group.reduce_scatter(parts[at], parts, ReduceOp.SUM, **begun), self._async_op)
            expected = combined(ReduceOp.SUM, [self._values(10 * each + me) for each in ranks])
            same(parts[at], expected, f"reduce_scatter into the input of {at}")
        long = torch.zeros(self._count + 1, device=self._device)
        long[1:] = everyone[me]
        into = [long[:-1], *(torch.zeros_like(each) for each in everyone[1:])]
        finish(group.all_gather(into, long[1:], **begun), self._async_op)
        same(into, everyone, "all_gather of what overlaps an output")
        for turn in (0, 1):
            parts = [self._values(10 * me + to) for to in ranks]
            into = [*parts[turn:], *parts[:turn]]
            finish(group.all_to_all(into, parts, **begun), self._async_op)
            same(
                into,
                [self._values(10 * each + me) for each in ranks],
                f"all_to_all in place, turned by {turn}",
            )

    def _values(self, seed: int) -> Tensor:
        return self._base + seed


def uneven(rt: Runtime, device: str) -> None:
    """Do operations on lists of tensors of several shapes."""
    import torch

    group, me, size = rt.collective, rt.rank, rt.world_size
    ranks = range(size)

    def part(source: int, to: int, dtype: str = "float32") -> Tensor:
        rows = (source + 2 * to) % (size + 1)  # none, of some
        values = sample(10 * source + to, dtype, device)
        return values.repeat(2, 1)[:rows]

    def room(like: Tensor) -> Tensor:
        return torch.zeros_like(like.T).T

    for number, dtype in enumerate(("float32", "bool", "complex64")):
        async_op = bool(number % 2)
        begun, expected = {"async_op": async_op}, [part(each, 0, dtype) for each in ranks]
        into = [room(each) for each in expected]
        finish(group.all_gather(into, part(me, 0, dtype), **begun), async_op)
        same(into, expected, "all_gather of several shapes")
        expected = [part(each, me, dtype) for each in ranks]
        into = [room(each) for each in expected]
        given = [part(me, each, dtype) for each in ranks]
        finish(group.all_to_all(into, given, **begun), async_op)
        same(into, expected, "all_to_all of several shapes")
        shapes = [part(0, each, dtype).shape for each in ranks]
        inputs = [
            sample(10 * me + to, dtype, device)[: shape[0]] for to, shape in enumerate(shapes)
        ]
        output = torch.zeros_like(inputs[me])
        finish(group.reduce_scatter(output, inputs, ReduceOp.SUM, **begun), async_op)
        own = [sample(10 * each + me, dtype, device)[: shapes[me][0]] for each in ranks]
        same(output, combined(ReduceOp.SUM, own), "reduce_scatter of several shapes")
    group.barrier()
    mixed = [torch.zeros(at + 1, device=device) for at in ranks]
    kinds = [torch.zeros(3, device=device), *(torch.zeros(3).int().to(device) for _ in ranks[1:])]
    if me == 0:
        for one_shape in (group.gather, group.scatter):
            with pytest.raises(ValueError, match="_list has tensors of one shape"):
                one_shape(mixed[0], mixed)
    with pytest.raises(ValueError, match="tensor_list has one dtype"):
        group.all_gather(kinds, kinds[0])
    with pytest.raises(ValueError, match="output_list has one dtype"):
        group.all_to_all(kinds, kinds)
    with pytest.raises(ValueError, match="input_list has one dtype"):
        group.reduce_scatter(kinds[0], kinds)
    group.barrier()
