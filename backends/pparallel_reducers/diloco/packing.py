"""Make what a member hands in small, and unpack it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from typing_extensions import Buffer

from pparallel_reducers.compression import Compressed, CompressionConfig, Compressor, shapes_of
from pparallel_reducers.diloco.weights import Weights, wide_dtype
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

    def state_dict(self) -> dict[str, Any] | None:
        """Return what is left out so far, and what else the compression keeps; None without it."""
        return None if self._compressor is None else self._compressor.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on from *state*, which :meth:`state_dict` has returned.

        Raises:
            ValueError: it is of another model, or of another compression.
        """
        if self._compressor is not None and state is not None:
            self._compressor.load_state_dict(state)
        elif self._compressor is not None or state is not None:
            message = (
                f"the reducer's state was saved {'without' if state is None else 'with'}"
                f" compression, and this member has it {'with' if state is None else 'without'}:"
                " give the same 'compression', and load what this member has saved itself"
            )
            raise ValueError(message)


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
        # In the dtype of the model, a small difference to a large number would be rounded away.
        difference = message.dense()
        wide = {dtype: flat.to(wide_dtype(dtype)) for dtype, flat in outer.trainable.items()}
        return Weights({dtype: flat - difference[dtype] for dtype, flat in wide.items()}, buffers)

    return rebuilt
