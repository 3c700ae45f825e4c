"""Gradients on their way: summed, counted and identified."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pparallel_reducers.grad_server.flat import Flat, Source

Id = tuple[str, int]  #: the member that pushed it, and its number there; numbers only rise


# Flats wait to be summed at once; each keeps memory of who sent it.
_MOST = 4  #: of them
_MOST_BYTES = 256 << 20  #: of all of them


@dataclass(eq=False, slots=True)
class Sum:
    """Some gradients that are combined, of which those that came last may not be added yet.

    Attributes:
        terms: for each share, flats that are combined in it, with the models' buffers, such as
            running means.
        count: how many there are.
        versions: for each share, the sum of the versions of the parameters that they were computed
            on.
        ids: which they are.
        serials: for each share, the tickets of the gradients, where staleness is bounded.
        mean: whether gradients become their mean, and not their sum.
        closed: what makes the flats, where they are not made yet.
    """

    terms: list[list[Flat]]
    count: int
    versions: list[int]
    ids: list[Id]
    serials: list[list[int]]
    mean: bool = True
    closed: Callable[[], list[Flat]] | None = None

    def open(self) -> None:
        """Make the flats, if they are not made yet."""
        if self.closed is not None:
            self.terms, self.closed = [[each] for each in self.closed()], None

    def add(self, other: Sum, sources: Sequence[Source]) -> None:
        """Add *other*, which is given away; where there are too many terms, sum in *sources*."""
        for mine, theirs, source in zip(self.terms, other.terms, sources, strict=True):
            mine += theirs
            if len(mine) > _MOST or len(mine) * mine[0].image.nbytes > _MOST_BYTES:
                mine[:] = [_combined(mine, source, self.mean)]
        self.count += other.count
        self.versions = [a + b for a, b in zip(self.versions, other.versions, strict=True)]
        self.ids = self.ids + other.ids
        self.serials = [a + b for a, b in zip(self.serials, other.serials, strict=True)]

    def total(self, index: int, source: Source) -> Flat:
        """Return one share in one flat, combined in *source* if it is more than one flat."""
        terms = self.terms[index]
        if len(terms) > 1:
            terms[:] = [_combined(terms, source, self.mean)]
        return terms[0]

    def whole(self, index: int, source: Source) -> Flat:
        """Return one share in one run of *source*, whose flats lie in one run."""
        terms = self.terms[index]
        terms[:] = [_combined(terms, source, self.mean, lambda each: each.whole is not None)]
        return terms[0]

    def share(self, index: int) -> Sum:
        """Return what one share has of it."""
        versions, serials = [self.versions[index]], [self.serials[index]]
        return Sum([self.terms[index]], self.count, versions, self.ids, serials, self.mean)


def _combined(
    terms: Sequence[Flat],
    source: Source,
    mean: bool,
    fits: Callable[[Flat], bool] = lambda _: True,
) -> Flat:
    """Combine *terms* in one that may be changed and *fits*, or else in a flat of *source*."""
    total = next((each for each in terms if each.own and fits(each)), None) or source.take()
    total.combine(terms, mean=mean)
    for each in terms:
        if each is not total:
            each.release()
    return total


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

    def knows(self, ids: Iterable[Id]) -> bool:
        """Return whether one of *ids* has come before."""
        return any(self.has(sender, number) for sender, number in ids)

    def note(self, ids: Iterable[Id]) -> None:
        """Note *ids*, of which none has come before."""
        for sender, number in ids:
            self._last[sender] = number
            self._count[sender] += 1

    def take_back(self, ids: Iterable[Id]) -> None:
        """Note that *ids*, the newest of their senders, were refused after all."""
        for sender, number in ids:
            if sender in self._last:
                self._last[sender] = min(self._last[sender], number - 1)
                self._count[sender] -= 1

    def has(self, sender: str, number: int) -> bool:
        """Return whether that one has come."""
        return number <= self._last.get(sender, -1)

    def forget(self, sender: str) -> None:
        """Keep no number of *sender*, which pushes no more."""
        self._last.pop(sender, None)
        self._count.pop(sender, None)

    def count(self, sender: str) -> int:
        """Return how many of *sender* have come."""
        return self._count.get(sender, 0)
