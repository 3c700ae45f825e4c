"""How members find that what one gives is not what another takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pparallel_shm.intents import Intent, described, digest

if TYPE_CHECKING:
    from torch import Tensor

Rows = Sequence[Sequence[int]]


class Layout(NamedTuple):
    """What one member gives to each other and takes from each.

    Attributes:
        row: numbers for that, which all members see; as many in all of them.
        misfit: finds, in the rows of all, a giver and a taker that do not fit.
        words: says what this member gives or takes, if it is that giver or that taker.
    """

    row: Sequence[int]
    misfit: Callable[[Rows], tuple[int, int] | None]
    words: Callable[[int, int], str]


def to_one(me: int, root: int, tensors: Sequence[Tensor], size: int, like: Like) -> Layout:
    """Return the layout where all give to the root: one tensor; there, what it takes from each."""

    def misfit(rows: Rows) -> tuple[int, int] | None:
        return next(((at, root) for at in range(size) if rows[at][at] != rows[root][at]), None)

    def words(giver: int, taker: int) -> str:
        return described([tensors[giver if me == root else 0]])

    return Layout(_row(me, root, tensors, size, like), misfit, words)


def from_one(me: int, root: int, tensors: Sequence[Tensor], size: int, like: Like) -> Layout:
    """Return the layout where the root gives to all: what it gives to each; elsewhere, one."""

    def misfit(rows: Rows) -> tuple[int, int] | None:
        return next(((root, at) for at in range(size) if rows[at][at] != rows[root][at]), None)

    def words(giver: int, taker: int) -> str:
        return described([tensors[taker if me == root else 0]])

    return Layout(_row(me, root, tensors, size, like), misfit, words)


def to_each(me: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], like: Like) -> Layout:
    """Return the layout where everyone gives to everyone."""
    size = len(inputs)

    def misfit(rows: Rows) -> tuple[int, int] | None:
        first = rows[0]
        if first.count(first[0]) == len(first) and rows.count(first) == size:
            return None
        pairs = ((giver, taker) for giver in range(size) for taker in range(size))
        return next(
            (each for each in pairs if rows[each[0]][each[1]] != rows[each[1]][size + each[0]]),
            None,
        )

    def words(giver: int, taker: int) -> str:
        return described([inputs[taker] if me == giver else outputs[giver]])

    return Layout([*map(like, inputs), *map(like, outputs)], misfit, words)


def own(intent: Intent, output: Tensor, tensor: Tensor, me: int) -> Intent:
    """Return the intent of a member whose *tensor* is not what fits into its own *output*.

    Nobody else means the same, so that all members find out.
    """
    if output.dtype == tensor.dtype and output.shape == tensor.shape:
        return intent
    words = f"{described([tensor])}, which does not fit into {described([output])} of its own"
    return Intent(digest(f"{me} {intent.operation} {words}"), intent.operation, words)


Like = Callable[["Tensor"], int]


def _row(me: int, root: int, tensors: Sequence[Tensor], size: int, like: Like) -> Sequence[int]:
    if me == root:
        return [like(each) for each in tensors]
    row = [0] * size
    row[me] = like(tensors[0])
    return row
