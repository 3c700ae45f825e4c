"""Gradients on their way: summed, counted and identified."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import Buffer

from pparallel_reducers.layout import Flats, Layout

if TYPE_CHECKING:
    import torch

Id = tuple[str, int]  #: the member that pushed it, and its number there; numbers only rise


@dataclass(eq=False, slots=True)
class Sum:
    """The sum of some gradients, which it owns.

    Attributes:
        gradients: their sums, by dtype.
        buffers: the sums of the models' buffers, such as running means, by dtype; of those that
            cannot be averaged, the last.
        count: how many there are.
        versions: the sum of the versions of the parameters that they were computed on.
        ids: which they are.
    """

    gradients: Flats
    buffers: Flats
    count: int
    versions: int
    ids: list[Id]

    def add(self, other: Sum) -> None:
        """Add *other*."""
        for dtype, flat in other.gradients.items():
            self.gradients[dtype] += flat
        for dtype, flat in other.buffers.items():
            if _averages(dtype):
                self.buffers[dtype] += flat
            else:
                self.buffers[dtype] = flat
        self.count += other.count
        self.versions += other.versions
        self.ids += other.ids

    def average(self, gradients: bool) -> None:
        """Divide the buffers, and the gradients if *gradients* says so, by the count."""
        for dtype, flat in self.buffers.items():
            if _averages(dtype):
                flat /= self.count
        for flat in self.gradients.values() if gradients else ():
            flat /= self.count

    def to(self, device: str) -> None:
        """Move to *device*."""
        self.gradients = {dtype: flat.to(device) for dtype, flat in self.gradients.items()}
        self.buffers = {dtype: flat.to(device) for dtype, flat in self.buffers.items()}

    def body(self) -> tuple[int, int, list[Id]]:
        """Return what :func:`rebuilt` needs beside :meth:`memory`: small and plain."""
        return self.count, self.versions, self.ids

    def memory(self, layout: Layout) -> list[Buffer]:
        """Return the memory of all flat tensors, moved to the CPU."""
        self.to("cpu")
        return [
            *layout.gradients.buffers(self.gradients),
            *layout.buffers.buffers(self.buffers),
        ]


def rebuilt(
    layout: Layout, count: int, versions: int, ids: Iterable[Id], memory: Sequence[Buffer]
) -> Sum:
    """Return the sum that :meth:`Sum.body` and :meth:`Sum.memory` describe, over that memory."""
    split = len(layout.gradients)
    gradients = layout.gradients.flats(memory[:split])
    return Sum(gradients, layout.buffers.flats(memory[split:]), count, versions, list(ids))


class Batch:
    """Adds up messages until there are enough."""

    def __init__(self, size: int, device: str) -> None:
        self._size = size
        self._device = device
        self._sum: Sum | None = None
        self._messages = 0

    def add(self, message: Sum) -> Sum | None:
        """Add *message*, which is given away; return the sum if the batch is full."""
        message.to(self._device)
        if self._sum is None:
            self._sum = message
        else:
            self._sum.add(message)
        self._messages += 1
        return self.take() if self._messages >= self._size else None

    def take(self) -> Sum | None:
        """Return the sum of what there is, None if there is nothing, and begin anew."""
        full, self._sum, self._messages = self._sum, None, 0
        return full


class Seen:
    """Which gradients have come: of one sender they come in the order of their numbers."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._count: defaultdict[str, int] = defaultdict(int)

    def note(self, ids: Iterable[Id]) -> bool:
        """Note *ids*; return False, and note nothing, if one has come before."""
        ids = list(ids)
        if any(number <= self._last.get(sender, -1) for sender, number in ids):
            return False
        for sender, number in ids:
            self._last[sender] = number
            self._count[sender] += 1
        return True

    def has(self, sender: str, number: int) -> bool:
        """Return whether that one has come."""
        return number <= self._last.get(sender, -1)

    def count(self, sender: str) -> int:
        """Return how many of *sender* have come."""
        return self._count[sender]


def _averages(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
