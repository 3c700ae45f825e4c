"""Programs of the collective suite: tensors of unusual forms and dtypes, on all operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pparallel.interfaces.collective import Collective, ReduceOp, Work
from pparallel.testing.collective.samples import applicable, combined, finish, same, sample

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pparallel.builder import Runtime

#: Names of dtypes that torch can move, and of which it can combine few.
RARE = (
    "int8",
    "int16",
    "uint16",
    "uint32",
    "uint64",
    "float8_e4m3fn",
    "float8_e5m2",
    "complex32",
)

#: Forms of a tensor by name; each takes [3, 4] values and returns a tensor with memory of its own.
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda values: values.clone(),
    "zero-dimensional": lambda values: values[1, 2].clone(),
    "without elements": lambda values: values[:0].clone(),
    "with empty rows": lambda values: values.clone()[:, :0],
    "without elements, transposed": lambda values: values[:0].clone().T,
    "one element with a stride": lambda values: values.reshape(-1).clone()[::7][1:],
    "one column with a stride": lambda values: values.clone().as_strided((3, 1), (1, 7)),
    "transposed": lambda values: values.T.contiguous().T,
    "every second column": lambda values: values.clone()[:, ::2],
    "channels last": lambda values: values.clone().view(1, 2, 3, 2).permute(0, 3, 1, 2),
}


class _Case:
    """One form and one dtype on one group: makes the tensors of all members.

    Args:
        rt: this member.
        device: where the tensors are.
        form: what makes a tensor of [3, 4] values.
        dtype: the name of the tensors' dtype.
        what: the case in words.
        async_op: how operations are begun.
    """

    def __init__(
        self,
        rt: Runtime,
        device: str,
        form: Callable[[Tensor], Tensor],
        dtype: str,
        what: str,
        *,
        async_op: bool,
    ) -> None:
        self.group, self.me, self.size = rt.collective, rt.rank, rt.world_size
        self.last = self.size - 1
        self._device, self._form, self._dtype = device, form, dtype
        self._what, self._async_op = what, async_op

    def make(self, seed: int) -> Tensor:
        """Return the tensor of a seed."""
        return self._form(sample(seed, self._dtype, self._device))

    def everyone(self) -> list[Tensor]:
        """Return the tensors of all members."""
        return [self.make(each) for each in range(self.size)]

    def room(self, count: int = 0) -> list[Tensor]:
        """Return tensors to fill; one for each member, if no *count* is given."""
        zeros = sample(0, self._dtype, self._device).zero_()
        return [self._form(zeros) for _ in range(count or self.size)]

    def finish(self, work: Work[None] | None) -> None:
        """Wait for what an operation returned."""
        finish(work, self._async_op)

    def compare(self, found: Sequence[Tensor], expected: Sequence[Tensor], name: str) -> None:
        """Check what came of an operation."""
        alike = [each.to(one.dtype) for each, one in zip(expected, found, strict=True)]
        same([*map(_values, found)], [*map(_values, alike)], f"{name}, {self._what}")

    # -- operations ---------------------------------------------------------------------------

    def moves(self) -> None:
        """Do what sends tensors as they are."""
        group, begun = self.group, {"async_op": self._async_op}
        told = self.make(self.me)
        self.finish(group.broadcast(told, self.last, **begun))
        self.compare([told], [self.make(self.last)], "broadcast")
        into = self.room()
        self.finish(group.all_gather(into, self.make(self.me), **begun))
        self.compare(into, self.everyone(), "all_gather")
        into = self.room()
        given = into if self.me == self.last else None
        self.finish(group.gather(self.make(self.me), given, self.last, **begun))
        if given is not None:
            self.compare(into, self.everyone(), "gather")
        (part,) = self.room(1)
        parts = self.everyone() if self.me == 0 else None
        self.finish(group.scatter(part, parts, 0, **begun))
        self.compare([part], [self.make(self.me)], "scatter")
        into = self.room()
        inputs = [self.make(10 * self.me + to) for to in range(self.size)]
        self.finish(group.all_to_all(into, inputs, **begun))
        expected = [self.make(10 * source + self.me) for source in range(self.size)]
        self.compare(into, expected, "all_to_all")
        if self.size > 1:
            sent = group.isend(self.make(self.me), (self.me + 1) % self.size)
            (got,) = self.room(1)
            before = (self.me - 1) % self.size
            assert group.recv(got, before) == before
            sent.wait()
            self.compare([got], [self.make(before)], "send")

    def reductions(self, op: ReduceOp) -> None:
        """Do what combines tensors."""
        begun = {"async_op": self._async_op}
        total = combined(op, [_dense(each) for each in self.everyone()])
        mine = self.make(self.me)
        self.finish(self.group.all_reduce(mine, op, **begun))
        self.compare([mine], [total], f"all_reduce by {op.name}")
        several = [self.make(self.me), self.make(self.me)]
        self.finish(self.group.all_reduce_coalesced(several, op, **begun))
        self.compare(several, [total, total], f"all_reduce_coalesced by {op.name}")
        mine = self.make(self.me)
        self.finish(self.group.reduce(mine, self.last, op, **begun))
        expected = total if self.me == self.last else self.make(self.me)
        self.compare([mine], [expected], f"reduce by {op.name}")
        (output,) = self.room(1)
        inputs = [self.make(10 * self.me + to) for to in range(self.size)]
        self.finish(self.group.reduce_scatter(output, inputs, op, **begun))
        own = [_dense(self.make(10 * source + self.me)) for source in range(self.size)]
        self.compare([output], [combined(op, own)], f"reduce_scatter by {op.name}")

    def refusals(self, op: ReduceOp) -> None:
        """Do what cannot combine tensors of this dtype; every member is told so at once."""
        one, several = self.make(self.me), self.everyone()
        calls: list[Callable[[], object]] = [
            lambda: self.group.all_reduce(one, op, async_op=self._async_op),
            lambda: self.group.all_reduce_coalesced([one], op, async_op=self._async_op),
            lambda: self.group.reduce(one, self.last, op, async_op=self._async_op),
            lambda: self.group.reduce_scatter(one, several, op, async_op=self._async_op),
            lambda: self.group.all_reduce_multigpu([one], op, async_op=self._async_op),
        ]
        for call in calls:
            with pytest.raises(
                ValueError, match=f"{op.name} does not apply to torch.{self._dtype}"
            ):
                call()


def unusual_forms(rt: Runtime, device: str, dtypes: Sequence[str]) -> None:
    """Do all operations on tensors of each form."""
    for first, dtype in enumerate(dtypes):
        for number, (name, form) in enumerate(_forms(dtype), start=first):
            what, async_op = f"{name}, of {dtype}", bool(number % 2)
            case = _Case(rt, device, form, dtype, what, async_op=async_op)
            case.moves()
            for op in applicable(dtype):
                case.reductions(op)


def unusual_dtypes(rt: Runtime, device: str) -> None:
    """Do all operations on rare dtypes: each is right, or is refused in every member."""
    for number, dtype in enumerate(RARE):
        async_op = bool(number % 2)
        known = set(applicable(dtype))
        case = _Case(rt, device, FORMS["plain"], dtype, f"of {dtype}", async_op=async_op)
        case.moves()
        for op in ReduceOp:
            if op in known:
                case.reductions(op)
            else:
                case.refusals(op)
    rt.collective.barrier()


def unsendable(rt: Runtime, device: str) -> None:
    """Do all operations on what has no elements of its own in memory: all members are told."""
    import torch

    good = sample(rt.rank, device=device)
    quantized: Any = torch.empty_quantized(
        [3], torch.quantize_per_tensor(good, 1.0, 0, torch.qint8)
    )
    bad: dict[str, Tensor] = {
        "layout torch.sparse_coo": good.to_sparse(),
        "layout torch.sparse_csr": good.to_sparse_csr(),
        "quantized": quantized,
        "nested": torch.nested.nested_tensor([good, good[:1]]),
    }
    if rt.world_size > 1:
        bad["meta"] = good.to("meta")
    for message, tensor in bad.items():
        for call in _calls(rt.collective, tensor, tensor):
            with pytest.raises(ValueError, match=message):
                call()
    expanded = good[:1].expand(3, 4)
    for output in (expanded, torch.zeros(7, device=device).as_strided((3, 4), (1, 1))):
        for call in _calls(rt.collective, output, good):
            with pytest.raises(ValueError, match="share memory"):
                call()
    total = sample(rt.rank, device=device)
    rt.collective.all_reduce(total)
    expected = [sample(each, device=device) for each in range(rt.world_size)]
    same(total, combined(ReduceOp.SUM, expected), "all_reduce after what was refused")
    into = [torch.zeros(3, 4, device=device) for _ in range(rt.world_size)]
    rt.collective.all_gather(into, expanded)
    same(into, [each[:1].expand(3, 4) for each in expected], "all_gather of an expanded tensor")


def _calls(group: Collective, output: Tensor, given: Tensor) -> list[Callable[[], object]]:
    """Return calls that fill *output*, some of them from *given*."""
    several, outputs = [given] * group.size(), [output] * group.size()
    calls: list[Callable[[], object]] = [
        lambda: group.broadcast(output, 0),
        lambda: group.all_reduce(output),
        lambda: group.all_reduce_coalesced([output]),
        lambda: group.reduce(output, 0),
        lambda: group.all_gather(outputs, given),
        lambda: group.scatter(output, several if group.rank == 0 else None, 0),
        lambda: group.reduce_scatter(output, several),
        lambda: group.all_to_all(outputs, several),
        lambda: group.broadcast_multigpu([output], 0),
        lambda: group.all_reduce_multigpu([output]),
        lambda: group.reduce_multigpu([output], 0),
        lambda: group.all_gather_multigpu([outputs], [given]),
    ]
    if group.size() > 1:
        calls.append(lambda: group.irecv(output, (group.rank + 1) % group.size()))
    return calls


def means(rt: Runtime, device: str, dtypes: Sequence[str]) -> None:
    """Average values whose sum the dtype cannot hold."""
    import torch

    group, size = rt.collective, rt.world_size
    for name in dtypes:
        dtype: torch.dtype = getattr(torch, name)
        if not (dtype.is_floating_point or dtype.is_complex):
            continue
        value: complex = 40_000.0 if dtype is torch.float16 else 0.6 * torch.finfo(dtype).max
        if dtype.is_complex:
            value = complex(value, -value)
        expected = torch.full((3, 5), value, dtype=dtype, device=device)

        def check(found: Tensor, what: str, expected: Tensor = expected) -> None:
            same(found, expected, f"{what} by AVG, in {size} members")
            if not size & (size - 1):
                assert (found == expected).all(), f"{what} by AVG is not exact in {size} members"

        one, turned = expected.clone(), expected.T.contiguous().T
        group.all_reduce(one, ReduceOp.AVG)
        check(one, "all_reduce")
        several = [expected.clone(), turned]
        work = group.all_reduce_coalesced(several, ReduceOp.AVG, async_op=True)
        finish(work, True)
        check(several[0], "all_reduce_coalesced")
        check(turned, "all_reduce_coalesced of a transposed tensor")
        one = expected.clone()
        group.reduce(one, size - 1, ReduceOp.AVG)
        check(one, "reduce")
        one = torch.zeros_like(expected)
        group.reduce_scatter(one, [expected] * size, ReduceOp.AVG)
        check(one, "reduce_scatter")
        several = [expected.clone(), expected.clone()]
        group.all_reduce_multigpu(several, ReduceOp.AVG)
        check(several[1], "all_reduce_multigpu")
        group.reduce_multigpu(several, 0, ReduceOp.AVG)
        check(several[0], "reduce_multigpu")


def _made_in_inference_mode(values: Tensor) -> Tensor:
    import torch

    with torch.inference_mode():
        return values.clone().T


def _forms(dtype: str) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    yield from FORMS.items()
    yield "made in inference mode", _made_in_inference_mode
    if dtype.startswith("complex"):
        yield "conjugated", lambda values: values.clone().conj()
        yield "negated", lambda values: values.clone().conj().imag
        yield "conjugated in inference mode", lambda values: _made_in_inference_mode(values).conj()
    if dtype.startswith(("float", "complex")):
        yield "that requires a gradient", lambda values: values.clone().requires_grad_()


def _dense(tensor: Tensor) -> Tensor:
    """Return a tensor's values, one after another, as a dtype that torch can divide."""
    import torch

    found = tensor.detach().resolve_conj().resolve_neg()
    if found.dtype is torch.complex32:
        found = found.to(torch.complex64)
    return found.clone(memory_format=torch.contiguous_format)


def _values(tensor: Tensor) -> Tensor:
    """Return a tensor's values as a dtype that torch can compare."""
    import torch

    if tensor.dtype is torch.complex32:
        return torch.view_as_real(tensor.detach().clone())
    found = _dense(tensor)
    if found.is_floating_point() and found.itemsize == 1:
        return found.to(torch.float32)
    if found.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return found.to(torch.int64)
    return found
