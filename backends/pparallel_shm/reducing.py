"""The operations that combine the tensors of all members, through their slots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from pparallel.interfaces.collective import ReduceOp
from pparallel_shm.combining import combine, depends_on_place
from pparallel_shm.pieces import Chunk, chunks

if TYPE_CHECKING:
    from torch import Tensor

    from pparallel_shm.place import Place

_SMALL = 1 << 15  #: bytes up to which everyone combines all, to save a round
_PIECE = 1 << 14  #: bytes of a piece that is worth an operation for each member
_PAIR = 2  #: members of which each combines all without laying it out once more
_STEP = 64  #: elements: parts begin at multiples of it, so that no cache line is shared


def reduce(place: Place, runs: Sequence[Tensor], how: ReduceOp, takes: bool) -> None:
    """Combine the runs of all members, in place where this member *takes* what comes of it."""
    plan = place.memory.plan
    nbytes = sum([each.nbytes for each in runs])
    place.make_ready(nbytes)
    pieces = chunks(runs, plan.slot)
    alone = plan.size == _PAIR or nbytes <= _SMALL
    if alone and not any(depends_on_place(how, each.dtype) for each in pieces):
        _each_for_itself(place, pieces, how, takes)
    else:
        _each_a_part(place, pieces, how, takes)


def reduce_scatter(place: Place, inputs: Sequence[Tensor], output: Tensor, how: ReduceOp) -> None:
    """Combine everyone's input for this member into *output*."""
    memory, agreement, me, size = place.memory, place.agreement, place.me, len(place.ranks)
    slots = memory.slots(output.dtype)
    place.make_ready(max(each.nbytes for each in inputs))
    room = memory.plan.slot // size // output.itemsize
    needed = -(-max(map(len, inputs)) // room)
    for number in range(max(1, needed)):
        parity, first = agreement.parity, number * room
        for at, run in enumerate(inputs):
            part = run[first : first + room]
            slots[me][parity][at * room : at * room + len(part)].copy_(part)
        agreement.meet()
        part = output[first : first + room]
        if len(part):
            where = slice(me * room, me * room + len(part))
            combine(how, [both[parity][where] for both in slots[:size]], part)


def _each_for_itself(place: Place, pieces: Sequence[Chunk], how: ReduceOp, takes: bool) -> None:
    """All lay out all they have, and everyone that takes it combines it: one round for a chunk."""
    agreement = place.agreement
    if not pieces:
        agreement.meet()
    for chunk in pieces:
        parity = agreement.parity
        slots = [both[parity] for both in place.memory.slots(chunk.dtype)]
        _write(chunk, slots[place.me])
        agreement.meet()
        if takes:
            _combine_all(chunk, slots[:-1], place.me, how)


def _each_a_part(place: Place, pieces: Sequence[Chunk], how: ReduceOp, takes: bool) -> None:
    """Everyone combines its part of each chunk for all.

    In each round a chunk is laid out, the one before it combined, and the one before that read.
    """
    agreement, memory, me, size = place.agreement, place.memory, place.me, len(place.ranks)
    for number in count():
        parity = agreement.parity
        if 0 < number <= len(pieces):
            chunk = pieces[number - 1]
            where = _part(chunk.length, me, size)
            slots = memory.slots(chunk.dtype)
            if where.start < where.stop:
                parts = [both[1 - parity][where] for both in slots[:size]]
                combine(how, parts, slots[size][parity][where])
        if number < len(pieces):
            chunk = pieces[number]
            _write(chunk, memory.slots(chunk.dtype)[me][parity])
        if number > 1 and takes:
            chunk = pieces[number - 2]
            _read(chunk, memory.slots(chunk.dtype)[size][1 - parity])
        if number > len(pieces):
            return
        agreement.meet()


def _part(length: int, me: int, size: int) -> slice:
    """Return which elements of so many this member combines."""
    share = -(-length // size // _STEP) * _STEP
    return slice(min(me * share, length), min((me + 1) * share, length))


def _write(chunk: Chunk, slot: Tensor) -> None:
    for run, start, end in chunk.pieces:
        slot[start:end].copy_(run)


def _read(chunk: Chunk, slot: Tensor) -> None:
    for run, start, end in chunk.pieces:
        run.copy_(slot[start:end])


def _combine_all(chunk: Chunk, slots: Sequence[Tensor], me: int, how: ReduceOp) -> None:
    many = len(chunk.pieces) > 1
    if many and len(chunk.pieces) * _PIECE > chunk.length * chunk.dtype.itemsize:
        total = slots[0].new_empty(chunk.length)
        combine(how, [each[: chunk.length] for each in slots], total)
        _read(chunk, total)
        return
    for run, start, end in chunk.pieces:
        parts = [each[start:end] for each in slots]
        if len(slots) == _PAIR:
            parts[me] = run  # which the other's is combined with in place
        combine(how, parts, run)
