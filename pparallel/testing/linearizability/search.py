"""The search for an order of the operations on one key that explains what all returned.

Source: the search of Wing and Gong (1993) with the memory of Lowe (2017), as in porcupine. What
changes nothing is taken as soon as it fits: it would fit no better later, and is in nobody's way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pparallel.testing.linearizability.model import State, apply
from pparallel.testing.linearizability.operation import READS, Operation


@dataclass(frozen=True, slots=True)
class Stuck:
    """How far the longest order came that explains what it holds.

    Attributes:
        explained: the operations in it, by their start.
        state: what the server holds after them.
        next: those of which one should have come next, and none could.
    """

    explained: list[Operation]
    state: State
    next: list[Operation]


def find_order(operations: Iterable[Operation], depth: int, limit: int) -> Stuck | None:
    """Look for one order in which a server could have done all that is known to have been done.

    Args:
        operations: those on one key.
        depth: how many versions the server keeps.
        limit: how many beginnings of orders are tried.

    Returns:
        ``None`` if there is one; else how far one comes.

    Raises:
        RuntimeError: the limit was reached before it was known.
    """
    search = _Search([each for each in operations if each.says_something], depth)
    path = [search.enter(0, ())]
    while path:
        reached = next(path[-1], None)
        if reached is None:
            path.pop()
        elif search.is_all(reached[0]):
            return None
        elif search.entered == limit:
            message = (
                f"could not decide within {limit} steps whether {len(search.history)} operations"
                f" are linearizable, {search.unknown} of them with unknown results: record fewer on"
                " one key, or raise the limit"
            )
            raise RuntimeError(message)
        elif reached not in search.tried:
            search.tried.add(reached)
            path.append(search.enter(*reached))
    return search.stuck()


class _Search:
    """The operations by their start; a set of them is the bits of a number."""

    def __init__(self, operations: list[Operation], depth: int) -> None:
        self.history = sorted(operations, key=lambda each: each.start)
        self.unknown = sum(not each.is_known for each in self.history)
        self.tried: set[tuple[int, State]] = set()
        self.entered = 0
        self._depth = depth
        self._known = [each.is_known for each in self.history]
        self._reads = [_is_read(each) for each in self.history]
        self._must = sum(1 << index for index, known in enumerate(self._known) if known)
        self._best: tuple[int, State] = (0, ())
        self._turns = self._preferred()

    def is_all(self, done: int) -> bool:
        """Return whether everything is done that is known to have been."""
        return done & self._must == self._must

    def enter(self, done: int, state: State) -> Iterator[tuple[int, State]]:
        """Yield where one may come from there, by one operation that changes something."""
        self.entered += 1
        done, ready = self._read_on(done, state)
        if done.bit_count() >= self._best[0].bit_count():
            self._best = (done, state)
        if self.is_all(done):
            yield done, state
            return
        for index in sorted(ready, key=self._turns.__getitem__):
            fits, after = apply(state, self.history[index], self._depth)
            if fits and not self._reads[index] and (self._known[index] or after != state):
                yield done | 1 << index, after

    def stuck(self) -> Stuck:
        """Return the longest way found."""
        done, state = self._best
        explained = [each for n, each in enumerate(self.history) if done >> n & 1]
        return Stuck(explained, state, [self.history[n] for n in self._ready(done)])

    def _read_on(self, done: int, state: State) -> tuple[int, list[int]]:
        """Do all that may come next and only reads; return what is done then, and what is next."""
        while True:
            ready = self._ready(done)
            before = done
            for index in ready:
                if self._reads[index] and apply(state, self.history[index], self._depth)[0]:
                    done |= 1 << index
            if done == before:
                return done, ready

    def _ready(self, done: int) -> list[int]:
        """Return which may come next: those that began before any other had to be over."""
        ready: list[int] = []
        first_end = float("inf")
        left = ~done
        index = (left & -left).bit_length() - 1
        for index in range(index, len(self.history)):  # noqa: B020 - those before are done
            each = self.history[index]
            if each.start > first_end:
                break
            if done >> index & 1:
                continue
            ready.append(index)
            if self._known[index]:
                first_end = min(first_end, each.end)
        return ready

    def _preferred(self) -> list[tuple[int, float]]:
        """Return by what to sort: what is known by its end, then what others may have seen."""
        known = [each for each in self.history if each.is_known]
        seen = {each.result[1] for each in known if each.name in ("pull", "wait") and each.result}
        seen.update(version for each in known if each.name == "versions" for version in each.result)
        return [
            (0, each.end)
            if each.is_known
            else (1 if each.name == "push" and each.arguments[1] in seen else 2, each.start)
            for each in self.history
        ]


def _is_read(operation: Operation) -> bool:
    """Return whether it changes nothing in whatever state it fits."""
    return operation.is_known and (operation.name in READS or operation.result is False)
