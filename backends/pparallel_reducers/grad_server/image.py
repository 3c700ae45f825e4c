"""Lay flat tensors out in one run of bytes, which travels in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pparallel_reducers.gradients import averages
from pparallel_reducers.layout import Layout

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PIECE = 4 * 2**20  #: bytes of the largest piece
_ALIGNED = 64  #: bytes; more than any dtype needs

Key: TypeAlias = "tuple[bool, torch.dtype]"  #: of a flat tensor: whether of gradients, and dtype


class Window(NamedTuple):
    """The part of one flat tensor that lies in one piece.

    Attributes:
        key: of the flat tensor.
        offset: where it begins in the piece, in bytes.
        size: how many elements it has.
        sums: whether what comes from several members is summed; otherwise the last holds.
        runs: which elements of which tensors these are: name, the shape if it is all of them, the
            first, and where they end.
    """

    key: Key
    offset: int
    size: int
    sums: bool
    runs: tuple[tuple[str, tuple[int, ...] | None, int, int], ...]


class Segment(NamedTuple):
    """One flat tensor in the run of bytes: where it begins and ends."""

    key: Key
    start: int
    end: int


class Image:
    """Where the flat gradients and buffers of a layout lie, one after another.

    Attributes:
        layout: the layout.
        nbytes: bytes of the whole.
        segments: the flat tensors.
        pieces: where each piece begins and ends.
        windows: what lies in each piece.

    Source: partitions of at most 4 MB, as of BytePS (Jiang et al., OSDI 2020).
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.segments: list[Segment] = []
        end = 0
        for is_gradient, section in ((True, layout.gradients), (False, layout.buffers)):
            for dtype, size in section.sizes.items():
                start = -(-end // _ALIGNED) * _ALIGNED
                end = start + size * dtype.itemsize
                self.segments.append(Segment((is_gradient, dtype), start, end))
        self.nbytes = end
        self.pieces = [(each, min(each + PIECE, end)) for each in range(0, end, PIECE)]
        self.windows = [self._windows(*each) for each in self.pieces]

    def fill(self, index: int, flats: list[Tensor], tensor: Callable[[str], Tensor]) -> None:
        """Copy what *tensor* returns by name into the flat tensors of one piece."""
        for window, flat in zip(self.windows[index], flats, strict=True):
            _copy_runs(window, flat, tensor)

    def flats(self, index: int, memory: memoryview) -> list[Tensor]:
        """Return the memory of a piece as flat tensors, one for each window.

        Raises:
            ValueError: it is not as large as the piece.
        """
        import torch

        start, end = self.pieces[index]
        if len(memory) != end - start:
            message = f"a piece of {len(memory)} bytes arrived, and should have {end - start}"
            raise ValueError(message)
        return [
            torch.frombuffer(memory, dtype=each.key[1], count=each.size, offset=each.offset)
            for each in self.windows[index]
        ]

    def _windows(self, start: int, end: int) -> list[Window]:
        found = []
        for key, first, last in self.segments:
            low, high = max(start, first), min(end, last)
            if low >= high:
                continue
            is_gradient, dtype = key
            section = self.layout.gradients if is_gradient else self.layout.buffers
            at, count = (low - first) // dtype.itemsize, (high - low) // dtype.itemsize
            runs = tuple(_run(*each) for each in section.inside(dtype, at, count))
            sums = is_gradient or averages(dtype)
            found.append(Window(key, low - start, count, sums, runs))
        return found


def _run(
    name: str, shape: tuple[int, ...], first: int, end: int
) -> tuple[str, tuple[int, ...] | None, int, int]:
    import math

    whole = first == 0 and end == math.prod(shape)
    return name, shape if whole else None, first, end


def _copy_runs(window: Window, flat: Tensor, tensor: Callable[[str], Tensor]) -> None:
    import torch

    parts: list[Tensor] = []
    for name, shape, first, end in window.runs:
        source = tensor(name).detach()
        at_once = source.is_contiguous() and source.device == flat.device
        if not at_once or source.dtype != flat.dtype:
            return _copy_one_by_one(window, flat, tensor)
        source = source.view(-1)
        parts.append(source if shape is not None else source[first:end])
    torch.cat(parts, out=flat)
    return None


def _copy_one_by_one(window: Window, flat: Tensor, tensor: Callable[[str], Tensor]) -> None:
    at = 0
    for name, shape, first, end in window.runs:
        source, until = tensor(name).detach(), at + end - first
        if shape is not None:
            flat[at:until].view(shape).copy_(source)
        else:
            flat[at:until].copy_(source.reshape(-1)[first:end])
        at = until
