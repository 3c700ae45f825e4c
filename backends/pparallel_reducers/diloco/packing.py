"""Make what a member hands in small, and unpack it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from typing_extensions import Buffer

from pparallel_reducers.compression import Compressed, CompressionConfig, Compressor, shapes_of
from pparallel_reducers.diloco.weights import Weights
from pparallel_reducers.layout import Layout


class Packed(NamedTuple):
    """Weights on their way.

    Attributes:
        body: what :func:`unpacked` needs beside the memory; None if nothing was compressed.
        memory: what they lie in.
    """

    body: Any
    memory: Sequence[Buffer]


class Packer:
    """Packs what one member hands in during one run.

    With compression the trainable parameters go as their difference to the outer ones. What is
    left out of it is added to the next difference.
    """

    def __init__(self, layout: Layout, compression: CompressionConfig | None) -> None:
        self._layout = layout
        self._compressor: Compressor | None = None
        if compression is not None:
            self._compressor = Compressor(compression, shapes_of(layout.entries))

    def pack(self, weights: Weights, outer: Weights) -> Packed:
        """Pack *weights*, which steps have made from *outer*."""
        if self._compressor is None:
            return Packed(None, weights.memory(self._layout))
        pairs = zip(outer.trainable.items(), weights.trainable.values(), strict=True)
        message = self._compressor.compress({dtype: old - new for (dtype, old), new in pairs})
        buffers = self._layout.buffers.buffers(weights.buffers)
        return Packed(message.body(), [*message.memory(), *buffers])

    def settle(self, accepted: bool) -> None:
        """Say whether what was packed last is in the outer parameters."""
        if self._compressor is not None:
            self._compressor.settle(accepted)


def unpacked(layout: Layout, packed: Packed) -> Callable[[Weights], Weights]:
    """Return what makes the weights again, from the outer ones that they were made from.

    Raises:
        ValueError: they are not of *layout*.
    """
    if packed.body is None:
        weights = Weights.over(layout, packed.memory)
        return lambda _: weights
    split = len(packed.memory) - len(layout.buffers)
    message = Compressed.received(shapes_of(layout.entries), packed.body, packed.memory[:split])
    buffers = layout.buffers.flats(packed.memory[split:])

    def rebuilt(outer: Weights) -> Weights:
        difference = message.dense()
        trainable = {dtype: flat - difference[dtype] for dtype, flat in outer.trainable.items()}
        return Weights(trainable, buffers)

    return rebuilt
