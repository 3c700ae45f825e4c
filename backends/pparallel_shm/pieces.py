"""Tensors as runs of elements, and the pieces in which these go through the slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pparallel.interfaces.collective import is_plain

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Piece(NamedTuple):
    """A part of a tensor, and the part of a slot that it goes through.

    Attributes:
        run: the elements, one after another.
        start: its first element in the slot.
        end: the one after its last.
    """

    run: Tensor
    start: int
    end: int


class Stretch(NamedTuple):
    """Where a part of a tensor lies.

    Attributes:
        address: in memory.
        start: its first byte in the slot that it goes through.
        nbytes: how many bytes it has.
    """

    address: int
    start: int
    nbytes: int


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


def chunks(runs: Sequence[Tensor], nbytes: int) -> list[Chunk]:
    """Return *runs* in chunks of *nbytes* at most, those of one dtype together."""
    if len(runs) == 1 and 0 < runs[0].nbytes <= nbytes:
        (run,) = runs
        length = run.numel()
        return [Chunk(run.dtype, length, [Piece(run, 0, length)])]
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for each in runs:
        kinds.setdefault(each.dtype, []).append(each)
    return [each for alike in kinds.values() for each in _alike(alike, nbytes)]


def _alike(runs: Sequence[Tensor], nbytes: int) -> Iterator[Chunk]:
    dtype = runs[0].dtype
    room = nbytes // dtype.itemsize
    pieces: list[Piece] = []
    filled = 0
    for run in runs:
        length, at = run.numel(), 0
        while at < length:
            count = min(room - filled, length - at)
            part = run if count == length else run[at : at + count]
            pieces.append(Piece(part, filled, filled + count))
            at, filled = at + count, filled + count
            if filled == room:
                yield Chunk(dtype, filled, pieces)
                pieces, filled = [], 0
    if filled:
        yield Chunk(dtype, filled, pieces)


def within(chunk: Chunk, start: int, end: int) -> list[Piece]:
    """Return what of a chunk lies between two elements of the slot."""
    return [
        Piece(run[max(start - first, 0) : end - first], max(start, first), min(end, last))
        for run, first, last in chunk.pieces
        if max(start, first) < min(end, last)
    ]


def stretches(chunk: Chunk, start: int, end: int) -> list[Stretch]:
    """Return where lies what of a chunk is between two elements of the slot."""
    itemsize = chunk.dtype.itemsize
    return [
        Stretch(
            run.data_ptr() + max(start - first, 0) * itemsize,
            max(start, first) * itemsize,
            (min(end, last) - max(start, first)) * itemsize,
        )
        for run, first, last in chunk.pieces
        if max(start, first) < min(end, last)
    ]


def run_of(tensor: Tensor) -> Tensor:
    """Return the elements of *tensor* in order: its own memory, or else a copy."""
    if not is_plain(tensor):
        tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.view(-1)


def room_for(tensor: Tensor) -> Tensor:
    """Return where the elements of *tensor* are to be written: its own memory, or other."""
    return (tensor if is_plain(tensor) else tensor.new_empty(tensor.shape)).view(-1)


def fill_from(tensors: Sequence[Tensor], runs: Sequence[Tensor]) -> None:
    """Copy the runs into their tensors, or tell autograd that their memory has been written to."""
    from torch.autograd.graph import increment_version

    for tensor, run in zip(tensors, runs, strict=True):
        if run.data_ptr() != tensor.data_ptr():
            tensor.copy_(run.view(tensor.shape))
        else:
            increment_version(tensor)
