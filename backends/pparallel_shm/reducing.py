"""The operations that combine the tensors of all members, through their slots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from pparallel.interfaces.collective import ReduceOp
from pparallel_shm.combining import combine, depends_on_place
from pparallel_shm.copies import lay_out, take
from pparallel_shm.pieces import Chunk, Piece, Stretch, chunks, stretches, within

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pparallel_shm.memory import Memory
    from pparallel_shm.place import Place

_SMALL = 1 << 16  #: bytes up to which everyone combines all, to save a round
_SMALL_FOR_PAIR = 1 << 19  #: the same where there is one other
_PIECE = 1 << 14  #: bytes of a piece that is worth an operation for each member
_PAIR = 2  #: members of which each combines in place
_FEW = 8  #: tensors of a chunk that are worth it to spare what this member combines a copy
_STEP = 64  #: elements: parts begin at multiples of it, so that no cache line is shared


def reduce(place: Place, runs: Sequence[Tensor], how: ReduceOp, takes: bool) -> None:
    """Combine the runs of all members, in place where this member *takes* what comes of it."""
    plan = place.memory.plan
    nbytes = sum([each.nbytes for each in runs])
    place.make_ready(nbytes)
    pieces = chunks(runs, plan.slot)
    alone = nbytes <= (_SMALL_FOR_PAIR if plan.size == _PAIR else _SMALL)
    if alone and not any(depends_on_place(how, each.dtype) for each in pieces):
        _each_for_itself(place, pieces, how, takes)
    else:
        _each_a_part(place, pieces, nbytes, how, takes)


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
            start = memory.addresses[me][parity] + at * room * part.itemsize
            lay_out(start, part.data_ptr(), part.nbytes)
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
        _write(stretches(chunk, 0, chunk.length), place.memory.addresses[place.me][parity])
        agreement.meet()
        if takes:
            _combine_all(chunk, slots[:-1], place.me, how)


def _each_a_part(
    place: Place, pieces: Sequence[Chunk], nbytes: int, how: ReduceOp, takes: bool
) -> None:
    """Everyone combines its part of each chunk for all.

    In each round a chunk is laid out, the one before it combined, and the one before that read.
    """
    agreement, memory, size = place.agreement, place.memory, len(place.ranks)
    mine, results = memory.addresses[place.me], memory.addresses[size]
    in_place = size == _PAIR and takes
    shares = [_shared_out(each, place.me, size) for each in pieces]
    for number in count():
        parity = agreement.parity
        if 0 < number <= len(shares):
            share = shares[number - 1]
            _combine_own(share, memory, place.me, parity, how, in_place)
        if number < len(shares):
            _write(shares[number].others, mine[parity])
        if number > 1 and takes:
            share = shares[number - 2]
            _read(share.others if in_place else share.whole, results[1 - parity], nbytes)
        if number > len(shares):
            return
        agreement.meet()


class _Share(NamedTuple):
    """What one member combines of a chunk.

    Attributes:
        dtype: of the chunk.
        start: the first element that it combines.
        end: the one after the last.
        own: the tensors' parts that it combines; none, if these are so many that it is quicker to
            combine them all at once where it has laid them out.
        others: where the rest of the chunk lies, or all of it, if there are none of its own.
        whole: where all of it lies.
    """

    dtype: torch.dtype
    start: int
    end: int
    own: Sequence[Piece]
    others: Sequence[Stretch]
    whole: Sequence[Stretch]


def _shared_out(chunk: Chunk, me: int, size: int) -> _Share:
    length = -(-chunk.length // size // _STEP) * _STEP
    start, end = min(me * length, chunk.length), min((me + 1) * length, chunk.length)
    whole = stretches(chunk, 0, chunk.length)
    if len(chunk.pieces) > _FEW:
        return _Share(chunk.dtype, start, end, [], whole, whole)
    others = [*stretches(chunk, 0, start), *stretches(chunk, end, chunk.length)]
    return _Share(chunk.dtype, start, end, within(chunk, start, end), others, whole)


def _combine_own(
    share: _Share, memory: Memory, me: int, parity: int, how: ReduceOp, in_place: bool
) -> None:
    """Write a member's part of the results to where all see it."""
    slots = memory.slots(share.dtype)
    results, laid_out = slots[-1][parity], [both[1 - parity] for both in slots[:-1]]
    if not share.own and share.start < share.end:
        where = slice(share.start, share.end)
        combine(how, [each[where] for each in laid_out], results[where])
    for run, start, end in share.own:
        parts = [each[start:end] for each in laid_out]
        parts[me] = run
        if in_place:
            combine(how, parts, run)
            lay_out(memory.addresses[-1][parity] + start * run.itemsize, run.data_ptr(), run.nbytes)
        else:
            combine(how, parts, results[start:end])


def _write(given: Sequence[Stretch], slot: int) -> None:
    for address, start, nbytes in given:
        lay_out(slot + start, address, nbytes)


def _read(taken: Sequence[Stretch], slot: int, of: int) -> None:
    for address, start, nbytes in taken:
        take(address, slot + start, nbytes, of)


def _combine_all(chunk: Chunk, slots: Sequence[Tensor], me: int, how: ReduceOp) -> None:
    many = len(chunk.pieces) > 1
    if many and len(chunk.pieces) * _PIECE > chunk.length * chunk.dtype.itemsize:
        total = slots[0].new_empty(chunk.length)
        combine(how, [each[: chunk.length] for each in slots], total)
        _read(stretches(chunk, 0, chunk.length), total.data_ptr(), total.nbytes)
        return
    for run, start, end in chunk.pieces:
        parts = [each[start:end] for each in slots]
        if len(slots) == _PAIR:
            parts[me] = run  # which the other's is combined with in place
        combine(how, parts, run)
