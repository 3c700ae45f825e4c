"""The operations that combine the tensors of all members, through their slots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from pparallel.interfaces.collective import ReduceOp
from pparallel_shm.copies import lay_out, take
from pparallel_shm.dividing import PAIR, Own, Share

if TYPE_CHECKING:
    from torch import Tensor

    from pparallel_shm.intents import Intent
    from pparallel_shm.pieces import Stretch
    from pparallel_shm.place import Place


def reduce(
    place: Place, intent: Intent, runs: Sequence[Tensor], how: ReduceOp, takes: bool
) -> None:
    """Combine the runs of all members, in place where this member *takes* what comes of it."""
    place.make_ready(sum([each.nbytes for each in runs]))
    division = place.divisions.of(intent, runs, how)
    each = _each_for_itself if division.alone else _each_a_part
    each(place, division.shares, runs, how, takes)


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
            how.combine([both[parity][where] for both in slots[:size]], part)


def _each_for_itself(
    place: Place, shares: Sequence[Share], runs: Sequence[Tensor], how: ReduceOp, takes: bool
) -> None:
    """All lay out all they have, and everyone that takes it combines it: one round for a chunk."""
    agreement, mine = place.agreement, place.memory.addresses[place.me]
    addresses = [each.data_ptr() for each in runs]
    if not shares:
        agreement.meet()
    for share in shares:
        parity = agreement.parity
        _write(share.whole, addresses, mine[parity])
        agreement.meet()
        for own in share.own if takes else ():
            parts = own.parts[parity]
            if own.piece is None:
                total = parts[0].new_empty(len(parts[0]))
                how.combine(parts, total)
                _read(share.whole, addresses, total.data_ptr(), total.nbytes)
            else:
                run = own.piece.of(runs)
                # Of two, the other's is combined with one's own in place, except for a mean: its
                # first part is rounded once more than its second, and is to be the same in both.
                in_place = len(parts) == PAIR and how is not ReduceOp.AVG
                how.combine(_with(parts, place.me, run) if in_place else parts, run)


def _each_a_part(
    place: Place, shares: Sequence[Share], runs: Sequence[Tensor], how: ReduceOp, takes: bool
) -> None:
    """Everyone combines its part of each chunk for all.

    In each round a chunk is laid out, the one before it combined, and the one before that read.
    """
    agreement, memory, size = place.agreement, place.memory, len(place.ranks)
    mine, results = memory.addresses[place.me], memory.addresses[size]
    addresses = [each.data_ptr() for each in runs]
    nbytes = sum([each.nbytes for each in runs])
    in_place = size == PAIR and takes
    for number in count():
        parity = agreement.parity
        if 0 < number <= len(shares):
            for own in shares[number - 1].own:
                _combine_own(own, runs, place.me, how, parity, results[parity] if in_place else 0)
        if number < len(shares):
            _write(shares[number].others, addresses, mine[parity])
        if number > 1 and takes:
            share = shares[number - 2]
            _read(share.others if in_place else share.whole, addresses, results[1 - parity], nbytes)
        if number > len(shares):
            return
        agreement.meet()


def _combine_own(
    own: Own, runs: Sequence[Tensor], me: int, how: ReduceOp, parity: int, copied_to: int
) -> None:
    """Write what a member combines to where all see it.

    With the address of a slot of results, it is combined in place and copied there.
    """
    parts, result = own.parts[1 - parity], own.results[parity]
    if own.piece is None:
        how.combine(parts, result)
        return
    run = own.piece.of(runs)
    parts = _with(parts, me, run)
    if not copied_to:
        how.combine(parts, result)
        return
    how.combine(parts, run)
    lay_out(copied_to + own.piece.start * run.itemsize, run.data_ptr(), run.nbytes)


def _with(parts: Sequence[Tensor], me: int, run: Tensor) -> list[Tensor]:
    mine = list(parts)
    mine[me] = run
    return mine


def _write(given: Sequence[Stretch], addresses: Sequence[int], slot: int) -> None:
    for run, first, start, nbytes in given:
        lay_out(slot + start, addresses[run] + first, nbytes)


def _read(taken: Sequence[Stretch], addresses: Sequence[int], slot: int, of: int) -> None:
    for run, first, start, nbytes in taken:
        take(addresses[run] + first, slot + start, nbytes, of)
