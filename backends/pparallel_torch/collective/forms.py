"""How a tensor is handed to torch's libraries, which know few dtypes and no strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions
from torch._C._distributed_c10d import ReduceOp as TorchReduceOp

from pparallel.interfaces.collective import ReduceOp, is_plain
from pparallel.interfaces.collective.algorithms import plain

TorchOp: Any = TorchReduceOp  # its members are not typed

_NUMBERS = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
)
_ORDERED = {
    ReduceOp.SUM: TorchOp.SUM,
    ReduceOp.PRODUCT: TorchOp.PRODUCT,
    ReduceOp.MIN: TorchOp.MIN,
    ReduceOp.MAX: TorchOp.MAX,
}
_BITWISE = {
    ReduceOp.BAND: TorchOp.BAND,
    ReduceOp.BOR: TorchOp.BOR,
    ReduceOp.BXOR: TorchOp.BXOR,
}
_KNOWN = frozenset(_NUMBERS)


class Reduction(NamedTuple):
    """How a library combines tensors of one dtype.

    Attributes:
        op: what the library does.
        view: how it sees their memory; ``None``: as it is.
        options: what ``allreduce`` is told: the same each time.
    """

    op: Any
    view: Callable[[Tensor], Tensor] | None
    options: AllreduceOptions

    def seen(self, tensor: Tensor) -> Tensor:
        """Return a plain tensor as the library sees it."""
        return tensor if self.view is None else self.view(tensor)

    @classmethod
    def by(cls, op: Any, view: Callable[[Tensor], Tensor] | None = None) -> Reduction:
        """Return how tensors are combined by *op*."""
        options = AllreduceOptions()
        options.reduceOp = op
        return cls(op, view, options)


Reductions = dict[tuple[torch.dtype, ReduceOp], Reduction]


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)


def reductions(*, bitwise: bool) -> Reductions:
    """Return what a library can combine; what ``AVG`` adds is divided already.

    Args:
        bitwise: whether it knows the bitwise operations.
    """
    found: Reductions = {}
    for dtype in _NUMBERS:
        ops = dict(_ORDERED)
        if dtype.is_floating_point:
            ops[ReduceOp.AVG] = TorchOp.SUM
        elif bitwise:
            ops |= _BITWISE
        found |= {(dtype, how): Reduction.by(op) for how, op in ops.items()}
    for dtype in (torch.complex64, torch.complex128):
        for how in (ReduceOp.SUM, ReduceOp.AVG):
            found[dtype, how] = Reduction.by(TorchOp.SUM, torch.view_as_real)
    truths = {
        ReduceOp.SUM: TorchOp.MAX,
        ReduceOp.PRODUCT: TorchOp.MIN,
        ReduceOp.MIN: TorchOp.MIN,
        ReduceOp.MAX: TorchOp.MAX,
        ReduceOp.BAND: TorchOp.MIN,
        ReduceOp.BOR: TorchOp.MAX,
    }
    if bitwise:
        truths[ReduceOp.BXOR] = TorchOp.BXOR
    found |= {(torch.bool, how): Reduction.by(op, _as_bytes) for how, op in truths.items()}
    return found


def lent(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy whose memory holds its values in order, as they are."""
    return tensor if is_plain(tensor) else plain(tensor)


def roomy(tensor: Tensor) -> Tensor:
    """Return the tensor, or room for its values in order."""
    return tensor if is_plain(tensor) else tensor.new_empty(tensor.shape)


def moved(tensor: Tensor) -> Tensor:
    """Return a plain tensor as a library sees it that only moves it."""
    if tensor.dtype in _KNOWN:
        return tensor
    # One element may have any stride, with which it cannot be viewed as bytes.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
