"""Numbers of half the size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from typing_extensions import override

from pparallel_reducers.compression.pieces import Memory, Piece, Shape, no_words, total

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Bf16(Piece):
    """Every entry, as bfloat16."""

    kind = "bf16"

    def __init__(self, short: Tensor) -> None:
        self._short = short

    @override
    def words(self) -> tuple[int, ...]:
        return ()

    @override
    def tensors(self) -> list[Tensor]:
        return [self._short]

    @override
    def add_to(self, flat: Tensor, sign: int = 1) -> None:
        flat.add_(self._short.to(flat.device), alpha=sign)

    @classmethod
    @override
    def rebuilt(
        cls, dtype: torch.dtype, shapes: Sequence[Shape], words: Sequence[int], memory: Memory
    ) -> Self:
        import torch

        no_words(cls.kind, words)
        return cls(memory.take(torch.bfloat16, total(shapes), f"{dtype} sent as bf16"))


def to_bf16(flat: Tensor) -> Bf16:
    """Return *flat* as bfloat16; what is beyond its range becomes its largest number."""
    import torch

    largest = torch.finfo(torch.bfloat16).max
    short = flat.to(torch.bfloat16)
    # float32 reaches a little further, and infinity could not be made up for later.
    return Bf16(short.clamp_(-largest, largest))
