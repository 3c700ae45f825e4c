"""Who combines what of the tensors that an operation reduces, and where in the slots it lies."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pparallel.interfaces.collective import ReduceOp
from pparallel_shm.intents import Intent, remember
from pparallel_shm.memory import Memory
from pparallel_shm.pieces import Chunk, Piece, Stretch, chunks

if TYPE_CHECKING:
    from torch import Tensor

_SMALL = 1 << 16  #: bytes up to which everyone combines all, to save a round
_SMALL_FOR_PAIR = 1 << 19  #: the same where there is one other
PAIR = 2  #: members of which each combines in place
_PIECE = 1 << 14  #: bytes of a piece that is worth an operation for each member
_FEW = 8  #: tensors of a chunk that are worth it to spare what this member combines a copy
_STEP = 64  #: elements: parts begin at multiples of it, so that no cache line is shared
_MOST = 1 << 8  #: how many divisions are remembered


class Own(NamedTuple):
    """What a member combines at once.

    Attributes:
        piece: what it is of this member's runs; None where it is what all have laid out, as it is
            of so many runs that it is quicker to combine them together.
        parts: [2][size] by parity, everyone's, in the slots.
        results: [2] by parity, in those of results.
    """

    piece: Piece | None
    parts: tuple[list[Tensor], list[Tensor]]
    results: tuple[Tensor, Tensor]


class Share(NamedTuple):
    """What a member does of a chunk.

    Attributes:
        own: what it combines.
        others: where lies what it lays out for others that combine it; all of the chunk, where
            what is its own is laid out too.
        whole: where all of the chunk lies.
    """

    own: list[Own]
    others: list[Stretch]
    whole: list[Stretch]


class Division(NamedTuple):
    """How an operation is divided among the members.

    Attributes:
        alone: whether everyone combines all, or each a part for all.
        shares: what this member does of each chunk.
    """

    alone: bool
    shares: list[Share]


class Divisions:
    """Divides operations, and remembers how: most come again and again.

    Args:
        memory: what the members share.
        me: this member's position.
    """

    def __init__(self, memory: Memory, me: int) -> None:
        self._memory, self._me = memory, me
        self._known: dict[Hashable, Division] = {}

    def of(self, intent: Intent, runs: Sequence[Tensor], how: ReduceOp) -> Division:
        """Return that of an operation on these runs, which are as the intent says."""
        found = self._known.get(intent.digest)
        if found is None:
            found = self._divided(runs, how)
            remember(self._known, intent.digest, found, _MOST)
        return found

    def _divided(self, runs: Sequence[Tensor], how: ReduceOp) -> Division:
        plan = self._memory.plan
        found = chunks(runs, plan.slot)
        nbytes = sum([each.nbytes for each in runs])
        alone = nbytes <= (_SMALL_FOR_PAIR if plan.size == PAIR else _SMALL)
        # A product of complex numbers is made in another way where it fills a vector register than
        # at the end of a run: its last bit may depend on where in a run it lies.
        if how is ReduceOp.PRODUCT and any(each.dtype.is_complex for each in found):
            alone = False
        divide = self._all if alone else self._part
        return Division(alone, [divide(each) for each in found])

    def _all(self, chunk: Chunk) -> Share:
        many, nbytes = len(chunk.pieces), chunk.length * chunk.dtype.itemsize
        if many > 1 and many * _PIECE > nbytes:
            own = [self._own(chunk, None, 0, chunk.length)]
        else:
            own = [self._own(chunk, each, each.start, each.end) for each in chunk.pieces]
        whole = chunk.stretches(chunk.pieces)
        return Share(own, whole, whole)

    def _part(self, chunk: Chunk) -> Share:
        size, length = self._memory.plan.size, chunk.length
        share = -(-length // size // _STEP) * _STEP
        start, end = min(self._me * share, length), min((self._me + 1) * share, length)
        whole = chunk.stretches(chunk.pieces)
        if len(chunk.pieces) > _FEW:
            own = [self._own(chunk, None, start, end)] if start < end else []
            return Share(own, whole, whole)
        own = [self._own(chunk, each, each.start, each.end) for each in chunk.within(start, end)]
        others = [*chunk.within(0, start), *chunk.within(end, length)]
        return Share(own, chunk.stretches(others), whole)

    def _own(self, chunk: Chunk, piece: Piece | None, start: int, end: int) -> Own:
        first, second = (
            [both[parity][start:end] for both in self._memory.slots(chunk.dtype)]
            for parity in (0, 1)
        )
        return Own(piece, (first[:-1], second[:-1]), (first[-1], second[-1]))
