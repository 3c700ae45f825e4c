"""Compress gradients, and remember what was left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, assert_never

from pparallel_reducers.compression.bf16 import to_bf16
from pparallel_reducers.compression.config import (
    Bf16CompressionConfig,
    CompressionConfig,
    PowerSgdCompressionConfig,
    TopKCompressionConfig,
)
from pparallel_reducers.compression.message import Compressed
from pparallel_reducers.compression.pieces import Piece, Shape, Shapes, Whole, compressible, total
from pparallel_reducers.compression.powersgd import PowerSgd
from pparallel_reducers.compression.topk import to_topk, worth_sending
from pparallel_reducers.layout import Flats

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_Encode: TypeAlias = "Callable[[Tensor], Piece]"  #: makes a piece of a finite flat tensor


class Compressor:
    """Compresses the gradients of one model for one sender, with error feedback.

    It is used by one thread at a time, and keeps two flat tensors of the size of the gradients.
    """

    def __init__(self, config: CompressionConfig, shapes: Shapes) -> None:
        """Make a compressor that owes nothing.

        Args:
            config: how to compress.
            shapes: of the tensors in the flat tensors: see
                :func:`~pparallel_reducers.compression.pieces.shapes_of`.
        """
        self._shapes = shapes
        self._memories = {
            dtype: _Memory(encode, dtype, total(own))
            for dtype, own in shapes.items()
            if compressible(dtype)
            and total(own)
            and (encode := _encoding(config, dtype, own)) is not None
        }

    def compress(self, gradients: Flats) -> Compressed:
        """Return a message of *gradients* and of what is owed, as far as there is room for it.

        The message may share memory with *gradients*, which are on the CPU and not changed; it is
        good until :meth:`compress` is called again. A message that was not settled counts as
        refused.

        A flat tensor with a number that is infinite or NaN is sent whole and as it is, so that the
        receiver sees it; what is owed of that dtype stays.
        """
        pieces: dict[torch.dtype, Piece] = {}
        for dtype in self._shapes:
            memory = self._memories.get(dtype)
            flat = gradients[dtype]
            pieces[dtype] = Whole(flat) if memory is None else memory.encode(flat)
        return Compressed(self._shapes, pieces)

    def settle(self, accepted: bool) -> None:
        """Say what became of the last message: if it was refused, all is owed as before."""
        for each in self._memories.values():
            each.settle(accepted)

    def owed(self) -> Flats:
        """Return a copy of what all accepted messages left out, by dtype."""
        return {dtype: each.owed.clone() for dtype, each in self._memories.items()}


class _Memory:
    """What is owed of one flat tensor.

    Attributes:
        owed: [n] float32, or float64 where the gradients are.
    """

    def __init__(self, encode: _Encode, dtype: torch.dtype, size: int) -> None:
        import torch

        self._encode = encode
        # Sums of what is left out would lose most of it in two bytes.
        wide = dtype if dtype.itemsize >= 4 else torch.float32
        self.owed = torch.zeros(size, dtype=wide)
        self._then = torch.zeros(size, dtype=wide)  # what is owed if the message is accepted
        self._sent = False

    def encode(self, flat: Tensor) -> Piece:
        import torch

        torch.add(flat, self.owed, out=self._then)
        self._sent = False
        if not torch.isfinite(self._then.sum()) and not torch.isfinite(self._then).all():
            return Whole(flat)
        piece = self._encode(self._then)
        if not piece.finite():  # a number in two bytes does not reach far
            return Whole(flat)
        piece.add_to(self._then, -1)
        self._sent = True
        return piece

    def settle(self, accepted: bool) -> None:
        if accepted and self._sent:
            self.owed, self._then = self._then, self.owed
        self._sent = False


def _encoding(
    config: CompressionConfig, dtype: torch.dtype, shapes: Sequence[Shape]
) -> _Encode | None:
    """Return how flat tensors are encoded; None if they are to be sent whole."""
    match config:
        case Bf16CompressionConfig():
            return to_bf16 if dtype.itemsize > 2 else None
        case TopKCompressionConfig(ratio=ratio):
            count = worth_sending(ratio, total(shapes), dtype)
            return None if count is None else partial(to_topk, dtype=dtype, count=count)
        case PowerSgdCompressionConfig(rank=rank):
            method = PowerSgd(rank, shapes)
            return partial(method.approximate, dtype=dtype) if method.saves else None
        case _:
            assert_never(config)
