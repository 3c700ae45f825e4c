"""How the elements of all members are combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from pparallel.interfaces.collective import ReduceOp

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def combine(how: ReduceOp, parts: Sequence[Tensor], out: Tensor) -> None:
    """Write the combination of two *parts* or more to *out*, in order.

    *out* may be one of the first two.
    """
    kernel = _kernel(how)
    kernel(parts[0], parts[1], out=out)
    for each in parts[2:]:
        kernel(out, each, out=out)
    how.finish(out, len(parts))


def depends_on_place(how: ReduceOp, dtype: torch.dtype) -> bool:
    """Return whether the last bit may depend on where in a run an element lies.

    Complex numbers are multiplied and divided in another way where they fill a vector register
    than at the end of a run.
    """
    return dtype.is_complex and how in (ReduceOp.PRODUCT, ReduceOp.AVG)


@cache
def check_kernel(how: ReduceOp, dtype: torch.dtype) -> None:
    """Refuse what torch cannot combine, before anything is begun.

    Raises:
        ValueError: torch has no such operation.
    """
    import torch

    one = torch.zeros(dtype.itemsize, dtype=torch.uint8).view(dtype)
    try:
        combine(how, [one, one], one.clone())
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{how.name} does not apply to {dtype}: {error}") from error


@cache
def _kernel(how: ReduceOp) -> Callable[..., Any]:
    import torch

    kernels: dict[ReduceOp, Callable[..., Any]] = {
        ReduceOp.SUM: torch.add,
        ReduceOp.AVG: torch.add,
        ReduceOp.PRODUCT: torch.mul,
        ReduceOp.MIN: torch.minimum,
        ReduceOp.MAX: torch.maximum,
        ReduceOp.BAND: torch.bitwise_and,
        ReduceOp.BOR: torch.bitwise_or,
        ReduceOp.BXOR: torch.bitwise_xor,
    }
    return kernels[how]
