"""Compressed gradients between a member and a secondary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from typing_extensions import Buffer

from pparallel_reducers.compression import Compressed, CompressionConfig, Compressor, shapes_of
from pparallel_reducers.compression.message import Body
from pparallel_reducers.grad_server.flat import Flat
from pparallel_reducers.grad_server.run import Run
from pparallel_reducers.layout import Flats, Layout

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pparallel_reducers.grad_server.image import Key


class Squeezed:
    """A gradient of a whole model, compressed, and the model's buffers as they are."""

    def __init__(self, run: Run, compressed: Compressed, buffers: Flats) -> None:
        self._run, self._compressed, self._buffers = run, compressed, buffers

    @classmethod
    def received(cls, run: Run, body: object, memory: Sequence[Buffer]) -> Squeezed:
        """Return what arrived.

        Raises:
            ValueError: it is not of this run's model.
        """
        section = run.layout.buffers
        split = len(memory) - len(section)
        shapes = shapes_of(run.layout.entries)
        compressed = Compressed.received(shapes, body, memory[:split])
        return cls(run, compressed, section.flats(memory[split:]))

    def body(self) -> Body:
        """Return what is told of it beside :meth:`memory`."""
        return self._compressed.body()

    def memory(self) -> list[Buffer]:
        """Return the memory to send."""
        return [*self._compressed.memory(), *self._run.layout.buffers.buffers(self._buffers)]

    def flats(self, device: str) -> list[Flat]:
        """Return it decompressed, for each share, in memory of its own."""
        dense = self._compressed.dense(device)
        ends: Counter[torch.dtype] = Counter()
        found = []
        for index, share in enumerate(self._run.shares):
            flats: dict[Key, Tensor] = {}
            for dtype, size in share.layout.gradients.sizes.items():
                flats[True, dtype] = dense[dtype][ends[dtype] :][:size]
                ends[dtype] += size
            for dtype, flat in self._buffers.items() if index == 0 else ():
                flats[False, dtype] = flat.to(device, copy=True)
            found.append(Flat.of(share.image, flats))
        return found


class Squeezer:
    """Compresses the gradients of one member in one run."""

    def __init__(self, config: CompressionConfig, run: Run) -> None:
        self._run = run
        self._compressor = Compressor(config, shapes_of(run.layout.entries))
        self._flats = run.layout.gradients.empty()
        self.settle = self._compressor.settle
        self.state_dict = self._compressor.state_dict
        self.load_state_dict = self._compressor.load_state_dict

    def squeeze(self, tensor: Callable[[str], Tensor]) -> Squeezed:
        """Compress what *tensor* returns by name; good until the next is."""
        layout: Layout = self._run.layout
        for name, view in layout.gradients.views(self._flats):
            view.copy_(tensor(name).detach())
        compressed = self._compressor.compress(self._flats)
        return Squeezed(self._run, compressed, layout.buffers.pack(tensor))
