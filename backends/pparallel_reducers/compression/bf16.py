"""Numbers of half the size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel_reducers.compression.pieces import Whole

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Bf16(Whole):
    """Every entry, as bfloat16."""

    kind = "bf16"
    how = "as bf16"

    @classmethod
    @override
    def sent_as(cls, dtype: torch.dtype) -> torch.dtype:
        import torch

        return torch.bfloat16


def to_bf16(flat: Tensor) -> Bf16:
    """Return *flat* as bfloat16; what is beyond its range becomes its largest number."""
    import torch

    largest = torch.finfo(torch.bfloat16).max
    short = flat.to(torch.bfloat16)
    # float32 reaches a little further, and infinity could not be made up for later.
    return Bf16(short.clamp_(-largest, largest))
