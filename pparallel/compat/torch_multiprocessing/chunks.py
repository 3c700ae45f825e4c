"""Tasks in chunks, each of which counts as one: what ``maxtasksperchild`` is said in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import chain, islice
from typing import Any

_ROUNDS = 4  #: chunks that each worker gets of a call whose chunks nobody has sized


class Chunk:
    """Applies a function to each item of a chunk."""

    def __init__(self, func: Callable[..., Any], *, star: bool = False) -> None:
        self._func, self._star = func, star

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        """Return the results of *items*."""
        func = self._func
        return [func(*each) for each in items] if self._star else [func(each) for each in items]


def chunks(items: Iterable[Any], chunksize: int) -> Iterator[list[Any]]:
    """Yield *items*, so many at a time."""
    iterator = iter(items)
    while chunk := list(islice(iterator, chunksize)):
        yield chunk


def chunksize_for(items: Sized, workers: int) -> int:
    """Return how many items a chunk has by default."""
    return max(1, -(-len(items) // (_ROUNDS * workers)))


def flat(results: Iterable[Iterable[Any]]) -> list[Any]:
    """Return the results of chunks as those of their items."""
    return list(chain.from_iterable(results))
