"""Tensors as runs of elements, and the pieces in which these go through the slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from pparallel.interfaces.collective import is_plain

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Piece(NamedTuple):
    """A part of a run, and the part of a slot that it goes through, counted in elements.

    Attributes:
        run: the index of the run.
        first: its first element in the run.
        start: its first element in the slot.
        end: the one after its last.
    """

    run: int
    first: int
    start: int
    end: int

    def of(self, runs: Sequence[Tensor]) -> Tensor:
        """Return the elements themselves."""
        run, length = runs[self.run], self.end - self.start
        return run if length == len(run) else run[self.first : self.first + length]


class Chunk(NamedTuple):
    """What goes through a slot in one round.

    Attributes:
        dtype: of all of its pieces.
        length: how many elements they have.
        pieces: one after another.
    """

    dtype: torch.dtype
    length: int
    pieces: list[Piece]

    def within(self, start: int, end: int) -> list[Piece]:
        """Return what lies between two elements of the slot."""
        return [
            Piece(run, first + max(start - at, 0), max(start, at), min(end, last))
            for run, first, at, last in self.pieces
            if max(start, at) < min(end, last)
        ]

    def stretches(self, pieces: Sequence[Piece]) -> list[Stretch]:
        """Return where *pieces* of it lie."""
        size = self.dtype.itemsize
        return [
            Stretch(run, first * size, start * size, (end - start) * size)
            for run, first, start, end in pieces
        ]


class Stretch(NamedTuple):
    """Where a piece lies, counted in bytes.

    Attributes:
        run: the index of the run.
        first: its first byte in the run.
        start: its first byte in the slot.
        nbytes: how many it has.
    """

    run: int
    first: int
    start: int
    nbytes: int


def chunks(runs: Sequence[Tensor], nbytes: int) -> list[Chunk]:
    """Return *runs* in chunks of *nbytes* at most, those of one dtype together."""
    kinds: dict[torch.dtype, list[tuple[int, int]]] = {}
    for number, run in enumerate(runs):
        kinds.setdefault(run.dtype, []).append((number, run.numel()))
    return [each for dtype, alike in kinds.items() for each in _alike(dtype, alike, nbytes)]


def _alike(dtype: torch.dtype, runs: Sequence[tuple[int, int]], nbytes: int) -> Iterator[Chunk]:
    room = nbytes // dtype.itemsize
    pieces: list[Piece] = []
    filled = 0
    for run, length in runs:
        at = 0
        while at < length:
            count = min(room - filled, length - at)
            pieces.append(Piece(run, at, filled, filled + count))
            at, filled = at + count, filled + count
            if filled == room:
                yield Chunk(dtype, filled, pieces)
                pieces, filled = [], 0
    if filled:
        yield Chunk(dtype, filled, pieces)


def run_of(tensor: Tensor) -> Tensor:
    """Return the elements of *tensor* in order: its own memory, or else a copy."""
    if not is_plain(tensor):
        tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor if tensor.dim() == 1 else tensor.view(-1)


def room_for(tensor: Tensor) -> Tensor:
    """Return where the elements of *tensor* are to be written: its own memory, or other."""
    return (tensor if is_plain(tensor) else tensor.new_empty(tensor.shape)).view(-1)


def fill_from(tensors: Sequence[Tensor], runs: Sequence[Tensor]) -> None:
    """Copy the runs into their tensors, or tell autograd that their memory has been written to."""
    written = []
    for tensor, run in zip(tensors, runs, strict=True):
        if run is tensor or run.data_ptr() == tensor.data_ptr():
            written.append(tensor)
        else:
            tensor.copy_(run.view(tensor.shape))
    _teller()(written)


@cache
def _teller() -> Callable[[Sequence[Tensor]], None]:
    from torch.autograd.graph import increment_version

    return increment_version
