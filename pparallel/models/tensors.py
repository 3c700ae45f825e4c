"""The tensors inside an object, and how much memory they take."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Span = tuple[int, int]


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in *value*, in nested collections, dataclasses and distributions too."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, torch.distributions.Distribution):
        yield from tensors_in(vars(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None))


def moved_bytes(tensor: torch.Tensor) -> int:
    """Return how many bytes a copy of *tensor* elsewhere takes, whatever else shares its memory."""
    parts = list(_dense(tensor))
    return sum(min(each.numel() * each.element_size(), _storage_bytes(each)) for each in parts)


def held_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return how many bytes *tensors* take together; memory that several share counts once."""
    spans: defaultdict[int, set[Span]] = defaultdict(set)
    elements: defaultdict[int, int] = defaultdict(int)
    limits: dict[int, int] = {}
    kept = [part for each in tensors for part in _dense(each)]  # alive, so that addresses differ
    for each in kept:
        storage = each.untyped_storage()
        key = storage._cdata
        first = int(each.storage_offset()) * each.element_size()
        spans[key].add((first, first + _extent(each)))
        elements[key] += each.numel() * each.element_size()
        limits[key] = storage.nbytes()
    # What has gaps takes, once it is copied, no more than its elements; what is expanded no more
    # than its memory.
    return sum(min(_union(spans[key]), elements[key], limits[key]) for key in spans)


def _storage_bytes(tensor: torch.Tensor) -> int:
    """Return what bounds a tensor's bytes where an element takes less than one."""
    dense = tensor.numel() == _extent(tensor) // tensor.element_size()
    limit = tensor.untyped_storage().nbytes()
    return limit if dense else max(limit, tensor.numel() * tensor.element_size())


def _dense(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors with memory of their own that make up *tensor*."""
    import torch

    if hasattr(tensor, "__tensor_flatten__"):  # a subclass that wraps others: quantised, sharded
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from _dense(getattr(tensor, name))
    elif tensor.is_nested:  # torch.strided: it has no shape of its own
        yield from tensor.detach().unbind()
    elif tensor.layout is torch._mkldnn:  # type: ignore[attr-defined]  # memory of oneDNN's own
        yield torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield tensor


def _extent(tensor: torch.Tensor) -> int:
    """Return the bytes from the first element to the last."""
    if not tensor.numel():
        return 0
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return int((last + 1) * tensor.element_size())


def _union(spans: Iterable[Span]) -> int:
    total = end = 0
    for first, last in sorted(spans):
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total
