"""What the members of the collective suite's tests send, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pparallel.interfaces.collective import ReduceOp, Work
from pparallel.testing.patience import PATIENCE

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: Names of dtypes that every backend should carry.
DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "uint8",
    "bool",
    "complex64",
    "complex128",
)
SHAPE = (3, 4)
LARGE = 1_500_001  #: elements; more than any buffer or block that a backend may work by


def sample(seed: int, dtype: str = "float32", device: str = "cpu") -> Tensor:
    """Return small whole numbers, the same for the same seed; sums of them are exact."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(1, 5, SHAPE, generator=generator)
    wanted: torch.dtype = getattr(torch, dtype)
    if wanted is torch.bool:
        return (values > 2).to(device)
    if wanted.is_complex:
        return torch.complex(values.double(), values.double() - 3).to(wanted).to(device)
    return values.to(wanted).to(device)


def sawtooth(count: int, device: str = "cpu") -> Tensor:
    """Return *count* values that rise to 96 and begin again."""
    import torch

    return torch.arange(97.0, device=device).repeat(count // 97 + 1)[:count].clone()


def samples(seeds: Sequence[int], dtype: str = "float32", device: str = "cpu") -> list[Tensor]:
    """Return the samples of several seeds."""
    return [sample(each, dtype, device) for each in seeds]


def room(count: int, dtype: str = "float32", device: str = "cpu") -> list[Tensor]:
    """Return tensors to be filled."""
    return [sample(0, dtype, device).zero_() for _ in range(count)]


def applicable(dtype: str) -> Iterator[ReduceOp]:
    """Yield the operations that apply to a dtype."""
    for op in ReduceOp:
        try:
            op.check(sample(0, dtype))
        except ValueError:
            continue
        yield op


def combined(op: ReduceOp, tensors: Sequence[Tensor]) -> Tensor:
    """Return the combination of *tensors*, one after the other; a mean of their parts."""
    import torch

    combine: dict[ReduceOp, Callable[[Tensor, Tensor], Tensor]] = {
        ReduceOp.SUM: torch.add,
        ReduceOp.AVG: torch.add,
        ReduceOp.PRODUCT: torch.mul,
        ReduceOp.MIN: torch.minimum,
        ReduceOp.MAX: torch.maximum,
        ReduceOp.BAND: torch.bitwise_and,
        ReduceOp.BOR: torch.bitwise_or,
        ReduceOp.BXOR: torch.bitwise_xor,
    }
    parts = [each / len(tensors) for each in tensors] if op is ReduceOp.AVG else tensors
    return reduce(combine[op], parts)


def same(found: Tensor | Sequence[Tensor], expected: Tensor | Sequence[Tensor], what: str) -> None:
    """Check tensors: dtype, shape, device and, to rounding, values."""
    import torch

    if _are_equal(found, expected):  # which is seen sooner
        return
    options: dict[str, Any] = {}
    if isinstance(found, torch.Tensor) and found.dtype in (torch.float16, torch.bfloat16):
        # A mean is rounded for each member, in an order that is the backend's.
        options = {"rtol": 4 * torch.finfo(found.dtype).eps, "atol": 1e-5}
    torch.testing.assert_close(found, expected, msg=lambda text: f"{what}: {text}", **options)


def _are_equal(found: Tensor | Sequence[Tensor], expected: Tensor | Sequence[Tensor]) -> bool:
    import torch

    if isinstance(found, torch.Tensor) and isinstance(expected, torch.Tensor):
        alike = found.dtype == expected.dtype and found.device == expected.device
        return alike and torch.equal(found, expected)
    if isinstance(found, torch.Tensor) or isinstance(expected, torch.Tensor):
        return False
    return len(found) == len(expected) and all(map(_are_equal, found, expected))


def finish(work: Work[None] | None, async_op: bool) -> None:
    """Wait for what an operation returned."""
    assert (work is not None) == async_op, "a handle is for async_op=True, and for nothing else"
    if work is not None:
        work.wait(PATIENCE)
        assert work.is_completed()
