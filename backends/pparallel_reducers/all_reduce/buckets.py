"""Which tensors travel together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T", bound="Tensor")


def buckets(tensors: Iterable[tuple[str, T]], limit: int) -> list[list[tuple[str, T]]]:
    """Divide named tensors, in order, into lists of one device and dtype.

    Each has at most *limit* bytes, or one tensor alone that has more. The lists are in the order in
    which they are full: the same for the same tensors.
    """
    open_: dict[object, list[tuple[str, T]]] = {}
    sizes: dict[object, int] = {}
    full = []
    for name, tensor in tensors:
        kind = (tensor.device, tensor.dtype)
        if kind in open_ and sizes[kind] + tensor.nbytes > limit:
            full.append(open_.pop(kind))
        if kind not in open_:
            open_[kind], sizes[kind] = [], 0
        open_[kind].append((name, tensor))
        sizes[kind] += tensor.nbytes
    return [*full, *open_.values()]


def parts(flat: Tensor, tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return views of *flat*, one after another, in the shapes of *tensors*."""
    alike = list(tensors)
    split = flat.split([each.numel() for each in alike])
    return [part.view(each.shape) for part, each in zip(split, alike, strict=True)]


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """Return a new tensor that has all the elements of *tensors*, one after another."""
    import torch

    return torch.cat([each.detach().reshape(-1) for each in tensors])
