"""Rounds: the members of a group wait for one another in shared memory."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from pparallel.errors import CallTimeoutError
from pparallel_shm.breaking import Breaking
from pparallel_shm.memory import Memory

_LOOK = 0.1  #: seconds after which one that waits looks again, whatever it may have missed


class Glance(NamedTuple):
    """How long to look for others before sleeping, which is not worth it for so short a time.

    Attributes:
        seconds: how long.
        between: what is done between two looks, such as to let others have the core.
    """

    seconds: float
    between: Callable[[], object]


#: where each member has a core of its own
OWN_CORE = Glance(20e-6, lambda: None)
#: where members share cores: whom one waits for may need this one. To sleep and be woken takes
#: longer, as a core that nobody uses falls asleep too; but the system lets only one that sleeps
#: be without a core for long, so that more than this delays the others.
SHARED_CORE = Glance(50e-6, getattr(os, "sched_yield", partial(time.sleep, 0)))
#: where members are threads, of which one that looks keeps the others from running
NONE = Glance(0, lambda: None)


class Rounds:
    """One member's part in the rounds of a group; all members go through the same.

    In each they write first, into slots and headers of its parity; then all wait until all have
    arrived; then they read what the others have written. The round after the next writes to the
    same places: by then all have read, or they would not have arrived in the one between.

    Who arrives says so by a number that no other member writes. Who finds others missing looks for
    a moment where that is worth it, and sleeps on a semaphore of its own then. Who arrives last
    finds all there, and wakes those that sleep. Nobody holds anything that its death would keep
    from the others.

    Args:
        memory: what the members share.
        me: this member's position.
        ranks: the ranks of all members, by position.
        timeout: seconds that the others have to arrive.
        left: what whoever waits for a member that has left is told, by rank; it grows.
        breaking: how the group is broken off.
        glance: how it looks for others before it sleeps.

    Attributes:
        number: how many rounds this member has arrived in.
        ended: what is told to this member when it waits or begins, once it is at its end here.
        raised: the last error that these rounds have raised on purpose.
    """

    def __init__(
        self,
        memory: Memory,
        me: int,
        ranks: Sequence[int],
        timeout: float,
        left: Mapping[int, BaseException],
        breaking: Breaking,
        glance: Glance,
    ) -> None:
        self.number = 0
        self.ended: BaseException | None = None
        self.raised: BaseException | None = None
        self._words, self._semaphore = memory.words, memory.semaphores[me]
        self._ranks, self._timeout, self._left = ranks, timeout, left
        self._breaking, self._glance = breaking, glance
        plan = memory.plan
        self._sequence, self._parked = plan.sequence(me), plan.parked(me)
        others = [each for each in range(plan.size) if each != me]
        self._sequences = {plan.sequence(each): ranks[each] for each in others}
        self._sleepers = [(plan.parked(each), memory.semaphores[each]) for each in others]
        self._fence, self._publish = memory.fence, memory.publish

    def meet(self, what: str) -> None:
        """Arrive in the next round of the operation *what*, and wait until all have.

        Raises:
            PeerLostError: a member that has not arrived has left.
            CallTimeoutError: one did not arrive in time.
            RemoteError: another member has broken the group off.
            ClosedError: this member has left, or the job has ended.
        """
        self.number = number = self.number + 1
        words = self._words
        self._publish()  # the slots and headers, before the number that tells of them
        words[self._sequence] = number
        with self._fence:  # the number is out before the others are looked at
            pass
        for each in self._sequences:
            if words[each] < number:
                self._wait(number, what)
                return
        for parked, semaphore in self._sleepers:
            if words[parked]:
                words[parked] = 0
                semaphore.post()

    def check(self) -> None:
        """Raise what this member is told when it begins something, if it is at its end here."""
        if self.ended is None and (found := self._breaking.heard()) is not None:
            self.ended = found.after
        if self.ended is not None:
            raise copy.copy(self.ended)

    def end(self, error: BaseException) -> None:
        """Have this member, which may wait in another thread, end with *error*; never blocks."""
        if self.ended is None:
            self.ended = error
        self.wake()

    def wake(self) -> None:
        """Have this member look at what has changed, if it waits; never blocks."""
        self._semaphore.post()

    def raising(self, error: BaseException) -> BaseException:
        """Return *error*, which is known to all whom it concerns."""
        self.raised = error
        return error

    def _wait(self, number: int, what: str) -> None:
        if self._all_come_soon(number):
            return
        words = self._words
        end = time.monotonic() + self._timeout
        while True:
            words[self._parked] = 1
            with self._fence:
                pass
            missing = [rank for at, rank in self._sequences.items() if words[at] < number]
            if not missing:
                break
            self._look(missing)
            left = end - time.monotonic()
            if left <= 0:
                raise CallTimeoutError(f"{what}: the arrival of ranks {missing}", self._timeout)
            self._semaphore.wait(min(_LOOK, left))
        words[self._parked] = 0

    def _look(self, missing: Sequence[int]) -> None:
        """Raise why those that are missing will not come, if it is known."""
        if self.ended is not None:
            raise self.raising(copy.copy(self.ended))
        for rank in missing:
            if (error := self._left.get(rank)) is not None:
                self.ended = error
                self._breaking.tell_of_loss(rank, error)
                raise self.raising(copy.copy(error))
        if (found := self._breaking.heard()) is not None:
            self.ended = found.after
            raise self.raising(found.error)

    def _all_come_soon(self, number: int) -> bool:
        words, sequences = self._words, self._sequences
        seconds, between = self._glance
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            between()
            for each in sequences:
                if words[each] < number:
                    break
            else:
                return True
        return False
