"""The largest entries alone.

Source: Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from pparallel_reducers.compression.pieces import Memory, Piece, Shape, total

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

REACH = 2**31  #: how many entries the indices of four bytes can tell apart


class TopK(Piece):
    """Some entries, each with its index in the flat tensor."""

    kind = "topk"

    def __init__(self, indices: Tensor, values: Tensor) -> None:
        self._indices = indices
        self._values = values

    @override
    def words(self) -> tuple[int, ...]:
        return (len(self._indices),)

    @override
    def tensors(self) -> list[Tensor]:
        return [self._indices, self._values]

    @override
    def add_to(self, flat: Tensor, sign: int = 1) -> None:
        indices = self._indices.to(flat.device)
        flat.index_add_(0, indices, self._values.to(flat.device, flat.dtype), alpha=sign)

    @classmethod
    @override
    def rebuilt(
        cls, dtype: torch.dtype, shapes: Sequence[Shape], words: Sequence[int], memory: Memory
    ) -> Self:
        size = total(shapes)
        if len(words) != 1 or not 0 <= words[0] <= size:
            message = f"{list(words)!r} entries of {size} of {dtype} are said to arrive"
            raise ValueError(message)
        indices = memory.take(_index_dtype(size), words[0], f"the indices of {dtype}")
        _check(indices, size)
        return cls(indices, memory.take(dtype, words[0], f"the values of {dtype}"))


def worth_sending(ratio: float, size: int, dtype: torch.dtype) -> int | None:
    """Return how many entries of *size* to send, at least one; None if all have no more bytes."""
    count = max(1, round(ratio * size))
    bytes_each = _index_dtype(size).itemsize + dtype.itemsize
    return count if count * bytes_each < size * dtype.itemsize else None


def to_topk(flat: Tensor, dtype: torch.dtype, count: int) -> TopK:
    """Return the *count* largest entries of *flat* as *dtype*, but no zeros.

    Args:
        flat: [n] float32 or float64, on the CPU and finite.
        dtype: in which their values are sent.
        count: how many.
    """
    import torch

    indices = torch.from_numpy(_largest(flat.abs().numpy(), count))
    return TopK(indices.to(_index_dtype(len(flat))), flat[indices].to(dtype))


def _largest(sizes: NDArray[Any], count: int) -> NDArray[np.intp]:
    """Return in rising order where the *count* largest of *sizes* are, beside zeros."""
    import numpy as np

    # torch.topk takes ten times as long on a CPU.
    at = len(sizes) - count
    least = np.partition(sizes, at)[at]
    above: NDArray[np.intp] = np.flatnonzero(sizes > least)
    if least == 0:
        return above
    ties = np.flatnonzero(sizes == least)[: count - len(above)]
    return np.sort(np.concatenate([above, ties]))


def _check(indices: Tensor, size: int) -> None:
    if not len(indices):
        return
    low, high = map(int, indices.aminmax())
    if low < 0 or high >= size:
        message = f"indices from {low} to {high} arrived for {size} entries"
        raise ValueError(message)


def _index_dtype(size: int) -> torch.dtype:
    import torch

    return torch.int32 if size <= REACH else torch.int64
