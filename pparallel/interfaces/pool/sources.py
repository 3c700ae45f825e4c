"""Where a stream's items come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import islice
from time import monotonic
from typing import Any

from typing_extensions import override

_PULL = 0.001  #: seconds; ready results do not wait longer than this for a slow iterable
_PIECE = 64  #: items between two looks at the clock, which cost as much as a few items


class Source(ABC):
    """Items to come.

    Attributes:
        ended: there are no more.
        error: what the iterable raised at its end.
    """

    ended = False
    error: Exception | None = None

    @abstractmethod
    def pull(self, room: int) -> Sequence[Any]:
        """Return some of the next items, at most *room*, but at least one unless it ends."""


class RangeSource(Source):
    """The numbers of a range, handed over as ranges: three numbers, however many they stand for."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers
        self.ended = not numbers

    @override
    def pull(self, room: int) -> Sequence[Any]:
        pulled, self._numbers = self._numbers[:room], self._numbers[room:]
        self.ended = not self._numbers
        return pulled


class IterableSource(Source):
    """The items of any iterable, pulled in growing pieces while that is quick."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterator = iter(iterable)
        self._at_once = type(iterable) in (list, tuple)
        self._pulled: list[Any] = []

    @override
    def pull(self, room: int) -> Sequence[Any]:
        items, deadline = self._pulled, monotonic() + _PULL
        piece = room if self._at_once else 1
        try:
            while len(items) < room:
                expected = min(room, len(items) + piece)
                items.extend(islice(self._iterator, expected - len(items)))
                self.ended = len(items) < expected
                if self.ended or monotonic() > deadline:
                    break
                piece = min(2 * piece, _PIECE)
        except Exception as error:  # noqa: BLE001 - raised again at its place
            self.ended, self.error = True, error
        self._pulled = []  # after Ctrl-C not: what was pulled is not lost
        return items


def source_of(iterable: Iterable[Any]) -> Source:
    """Return the source of the items of *iterable*."""
    return RangeSource(iterable) if type(iterable) is range else IterableSource(iterable)
