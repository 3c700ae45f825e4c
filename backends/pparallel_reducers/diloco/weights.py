"""What is averaged of a model: its trainable parameters and its buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from typing_extensions import Buffer

from pparallel_reducers.gradients import first_not_finite
from pparallel_reducers.layout import Flats, Layout, state_of

if TYPE_CHECKING:
    import torch
    from torch.nn import Module


class Weights(NamedTuple):
    """Flat tensors on the CPU, one for each dtype; whoever holds them does not change them.

    Attributes:
        trainable: the trainable parameters.
        buffers: the persistent buffers, such as running means.
    """

    trainable: Flats
    buffers: Flats

    @classmethod
    def of(cls, layout: Layout, model: Module) -> Weights:
        """Copy them from *model*."""
        tensor = state_of(model).__getitem__
        return cls(layout.gradients.pack(tensor), layout.buffers.pack(tensor))

    @classmethod
    def over(cls, layout: Layout, memory: Sequence[Buffer]) -> Weights:
        """Return those that lie in *memory*, as :meth:`memory` gave it.

        Raises:
            ValueError: it is not of the right sizes.
        """
        split = len(layout.gradients)
        buffers = layout.buffers.flats(memory[split:])
        return cls(layout.gradients.flats(memory[:split]), buffers)

    def memory(self, layout: Layout) -> list[Buffer]:
        """Return the memory that they lie in."""
        trainable = layout.gradients.buffers(self.trainable)
        return [*trainable, *layout.buffers.buffers(self.buffers)]

    def put(self, layout: Layout, model: Module) -> None:
        """Copy them into *model*."""
        import torch

        tensors = state_of(model)
        with torch.no_grad():
            for name, view in layout.gradients.views(self.trainable):
                tensors[name].copy_(view)
            for name, view in layout.buffers.views(self.buffers):
                tensors[name].copy_(view)

    def not_finite(self, layout: Layout) -> str | None:
        """Return the name of the first parameter that holds NaN or infinity, None if none does.

        Buffers are not looked at: a mask of -inf is an ordinary one.
        """
        return first_not_finite(layout.gradients.views(self.trainable))


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return *dtype*, or that of single precision for one of less."""
    import torch

    if dtype.is_complex:
        return torch.complex64 if dtype.itemsize < 8 else dtype
    return torch.float32 if dtype.itemsize < 4 else dtype
