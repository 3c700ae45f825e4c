"""What one member has of a group: memory, rounds, and the words for what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pparallel.errors import ClosedError
from pparallel.machine.cpus import usable_cpus
from pparallel.runtime.forks import Inherited
from pparallel_shm.agreement import Agreement
from pparallel_shm.breaking import Breaking
from pparallel_shm.dividing import Divisions
from pparallel_shm.intents import Intents
from pparallel_shm.memory import Memory
from pparallel_shm.rounds import NONE, OWN_CORE, SHARED_CORE, Glance, Rounds
from pparallel_shm.threads import Threads

_EARLY = 1 << 16  #: bytes of a tensor from which on the pages of slots are had at once


class Place:
    """Where one member does the operations of a group of several.

    Args:
        memory: what they share; all of them have it.
        me: this member's position.
        ranks: their ranks, by position.
        names: their names.
        what: the collective, in words.
        timeout: seconds that the others have to arrive.
        left: errors by the ranks of members that have left; it grows.
    """

    def __init__(
        self,
        memory: Memory,
        me: int,
        ranks: Sequence[int],
        names: Sequence[str],
        what: str,
        timeout: float,
        left: Mapping[int, BaseException],
    ) -> None:
        self.memory, self.me, self.ranks = memory, me, ranks
        self._breaking = breaking = Breaking(memory, me, ranks, names, what)
        self.rounds = Rounds(memory, me, ranks, timeout, left, breaking, _glance(memory))
        self.agreement = Agreement(memory, me, ranks, self.rounds, breaking)
        self.intents, self.divisions = Intents(), Divisions(memory, me)
        self.threads = Threads(max(1, usable_cpus() // len(ranks)))
        self._what = what
        _all.add(self)

    def make_ready(self, nbytes: int) -> None:
        """Have memory there for an operation on so many bytes.

        Raises:
            MemoryError: the machine has none left.
        """
        if nbytes >= _EARLY:
            self.memory.populate(self.me)
            if not self.me:
                self.memory.populate(len(self.ranks))

    def give_up(self, error: BaseException) -> None:
        """Break the group off, unless that has been done, for *error* kept this member from it."""
        if self.rounds.ended is None:
            self.rounds.ended = self._breaking.break_off("an operation", error)

    def end_in_child(self) -> None:
        """Refuse to do anything in a child that was forked: it would pass for its parent."""
        why = "was opened by the process that this one was forked from"
        self.rounds.ended = ClosedError(f"the collective {self._what!r}", why)


def _glance(memory: Memory) -> Glance:
    """Return how members look for one another: by whether they are processes, and how many."""
    size = memory.plan.size
    processes = {memory.words[memory.plan.process(each)] for each in range(size)}
    if len(processes) < size:
        return NONE
    return OWN_CORE if size <= usable_cpus() else SHARED_CORE


_all = Inherited(Place.end_in_child)
