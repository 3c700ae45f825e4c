"""Cut a model into the shares of several primaries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pparallel_reducers.grad_server.image import Image
from pparallel_reducers.layout import Entry, Layout

if TYPE_CHECKING:
    from torch import Tensor


class Share:
    """What one primary steps: a range of the parameters, and in the first all buffers.

    Attributes:
        layout: of it; a tensor of which it has a part is there with one dimension.
        image: of it.
    """

    def __init__(self, layout: Layout, cuts: Mapping[str, tuple[int, int]]) -> None:
        self.layout = layout
        self.image = Image(layout)
        self._names = {each.name for each in layout.entries}
        self._cuts = dict(cuts)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def cut(self, name: str) -> tuple[int, int] | None:
        """Return which elements of a tensor it has, None if all of them."""
        return self._cuts.get(name)

    def part(self, name: str, tensor: Tensor) -> Tensor:
        """Return what it has of *tensor*: a view where that is contiguous."""
        cut = self._cuts.get(name)
        return tensor if cut is None else tensor.reshape(-1)[slice(*cut)]

    def targets(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return by name where what it has of *tensors* belongs; see :meth:`settle`."""
        return {
            each.name: self.part(each.name, tensors[each.name].detach())
            for each in self.layout.entries
        }

    def settle(self, targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
        """Put those *targets* in place that could not be views of *tensors*."""
        for name, (first, end) in self._cuts.items():
            tensor = tensors[name].detach()
            if not tensor.is_contiguous():
                flat = tensor.flatten()
                flat[first:end] = targets[name]
                tensor.copy_(flat.view(tensor.shape))


def shares(layout: Layout, count: int) -> list[Share]:
    """Return *layout* cut into as many shares: of each dtype contiguous ranges, nearly equal.

    Source: range push and pull of the parameter server (Li et al., OSDI 2014).
    """
    if count == 1:
        return [Share(layout, {})]
    return [_share(layout, index, count) for index in range(count)]


def _share(layout: Layout, index: int, count: int) -> Share:
    entries: list[Entry] = []
    cuts: dict[str, tuple[int, int]] = {}
    totals: dict[str, int] = {}
    for each in layout.entries:
        if each.kind == "trainable":
            totals[each.dtype] = totals.get(each.dtype, 0) + math.prod(each.shape)
    ends = dict.fromkeys(totals, 0)
    for each in layout.entries:
        size = math.prod(each.shape)
        if each.kind != "trainable" or size == 0:
            entries += [each] * (index == 0)
            continue
        start = ends[each.dtype]
        end = ends[each.dtype] = start + size
        low = max(start, totals[each.dtype] * index // count)
        high = min(end, totals[each.dtype] * (index + 1) // count)
        if (low, high) == (start, end):
            entries.append(each)
        elif low < high:
            entries.append(Entry(each.name, (high - low,), each.dtype, each.kind))
            cuts[each.name] = low - start, high - start
    return Share(Layout(entries), cuts)
