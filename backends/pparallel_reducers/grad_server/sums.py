"""Gradients on their way: summed, counted and identified."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pparallel_reducers.grad_server.flat import Flat, Source

Id = tuple[str, int]  #: the member that pushed it, and its number there; numbers only rise


@dataclass(eq=False, slots=True)
class Sum:
    """The sum of some gradients.

    Attributes:
        flats: their sums, with those of the models' buffers, such as running means; of buffers
            that cannot be averaged, the last. One for each share.
        count: how many there are.
        versions: for each share, the sum of the versions of the parameters that they were computed
            on.
        ids: which they are.
        serials: for each share, the tickets of the gradients, where staleness is bounded.
        closed: what makes the flats, where they are not made yet.
    """

    flats: list[Flat]
    count: int
    versions: list[int]
    ids: list[Id]
    serials: list[list[int]]
    closed: Callable[[], list[Flat]] | None = None

    def open(self) -> None:
        """Make the flats, if they are not made yet."""
        if self.closed is not None:
            self.flats, self.closed = self.closed(), None

    def add(self, other: Sum, sources: Sequence[Source]) -> None:
        """Add *other*, which is given away; what must not be changed is summed elsewhere."""
        for index, theirs in enumerate(other.flats):
            mine = self.flats[index]
            if mine.own:
                mine.add(theirs)
            else:
                self.flats[index] = sources[index].take()
                self.flats[index].become_sum(mine, theirs)
            theirs.release()
        self.count += other.count
        self.versions = [a + b for a, b in zip(self.versions, other.versions, strict=True)]
        self.ids = self.ids + other.ids
        self.serials = [a + b for a, b in zip(self.serials, other.serials, strict=True)]

    def average(self, gradients: bool) -> None:
        """Divide the buffers, and the gradients if *gradients* says so, by the count."""
        for flat in self.flats:
            flat.divide(self.count, gradients)

    def share(self, index: int) -> Sum:
        """Return what one share has of it."""
        versions, serials = [self.versions[index]], [self.serials[index]]
        return Sum([self.flats[index]], self.count, versions, self.ids, serials)


class Batch:
    """Adds up messages until there are enough."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._sources: Sequence[Source] = ()
        self._sum: Sum | None = None
        self._messages = 0

    def begin(self, sources: Sequence[Source]) -> None:
        """Begin anew, with where sums find memory."""
        self._sources, self._sum, self._messages = sources, None, 0

    @property
    def sum(self) -> Sum | None:
        """What there is so far."""
        return self._sum

    @property
    def is_full(self) -> bool:
        """Whether there are enough."""
        return self._messages >= self._size

    def add(self, message: Sum) -> None:
        """Add *message*, which is given away."""
        message.open()
        if self._sum is None:
            self._sum = message
        else:
            self._sum.add(message, self._sources)
        self._messages += 1

    def take(self) -> Sum | None:
        """Return the sum of what there is, None if there is nothing, and begin anew."""
        full, self._sum, self._messages = self._sum, None, 0
        return full


class Seen:
    """Which gradients have come: of one sender they come in the order of their numbers."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._count: defaultdict[str, int] = defaultdict(int)

    def note(self, ids: Iterable[Id]) -> bool:
        """Note *ids*; return False, and note nothing, if one has come before."""
        ids = list(ids)
        if any(number <= self._last.get(sender, -1) for sender, number in ids):
            return False
        for sender, number in ids:
            self._last[sender] = number
            self._count[sender] += 1
        return True

    def has(self, sender: str, number: int) -> bool:
        """Return whether that one has come."""
        return number <= self._last.get(sender, -1)

    def count(self, sender: str) -> int:
        """Return how many of *sender* have come."""
        return self._count[sender]
