"""Operations that all members of a group mean alike."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from pparallel_shm.breaking import Breaking
from pparallel_shm.intents import Intent, difference
from pparallel_shm.memory import MEANT_TEXT, Memory
from pparallel_shm.misfits import Layout
from pparallel_shm.rounds import Rounds


class Agreement:
    """One member's part in the operations of a group.

    In the first round of each operation everyone says in a header what it means to do. Members
    that do not mean the same all find out then, before they touch what does not fit, and all raise
    ``ValueError``; the next operation goes on as if nothing had been. What else is raised in an
    operation breaks the group off: its members may be in different rounds.

    Used as a context manager, after :meth:`on`; inside comes one call of :meth:`meet` at least.
    """

    def __init__(
        self, memory: Memory, me: int, ranks: Sequence[int], rounds: Rounds, breaking: Breaking
    ) -> None:
        self._memory, self._me, self._ranks = memory, me, ranks
        self._rounds, self._breaking = rounds, breaking
        plan = memory.plan
        self._heads = [[plan.head(each, parity) for each in range(plan.size)] for parity in (0, 1)]
        self._intent = Intent(1, "nothing", "")
        self._is_first = False
        self._layout: Layout | None = None

    @property
    def parity(self) -> int:
        """Which slots are written to before the next round."""
        return (self._rounds.number + 1) & 1

    def on(self, intent: Intent) -> Self:
        """Begin an operation."""
        self._rounds.check()
        head = self._heads[self.parity][self._me]
        self._memory.words[head] = intent.digest
        self._memory.words[head + 1] = 1
        self._intent, self._is_first = intent, True
        return self

    def need(self, rounds: int) -> None:
        """Say in the header how many rounds this member needs; one, if nothing is said."""
        self._memory.words[self._heads[self.parity][self._me] + 1] = rounds

    def lay_out(self, layout: Layout) -> None:
        """Say in the header what this member gives to each other and takes from each."""
        start = self._memory.plan.row(self._me, self.parity)
        for at, word in enumerate(layout.row, start):
            self._memory.words[at] = word
        self._layout = layout

    @property
    def needed(self) -> int:
        """The most rounds that any member needs; known after the first."""
        words = self._memory.words
        return max(words[each + 1] for each in self._heads[self._rounds.number & 1])

    def meet(self) -> None:
        """Arrive in the next round of the operation, and wait until all have; see `Rounds`.

        Raises:
            ValueError: it is the first, and members do not mean the same.
        """
        self._rounds.meet(self._intent.operation)
        if self._is_first:
            self._is_first = False
            self._compare()

    def __enter__(self) -> None:
        """Do the operation inside."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._layout = None
        rounds = self._rounds
        if error is not None and error is not rounds.raised:
            rounds.ended = self._breaking.break_off(self._intent.operation, error)
        rounds.raised = None

    def _compare(self) -> None:
        words, intent, parity = self._memory.words, self._intent, self._rounds.number & 1
        for each in self._heads[parity]:
            if words[each] != intent.digest:
                said = self._hear(f"{intent.operation}\n{intent.tensors}")
                begun = [each.partition("\n") for each in said]
                pairs = [(operation, tensors) for operation, _, tensors in begun]
                raise self._rounds.raising(difference(self._ranks, pairs))
        if (layout := self._layout) is not None:
            starts = [self._memory.plan.row(each, parity) for each in range(len(self._ranks))]
            rows = [words[each : each + len(layout.row)].tolist() for each in starts]
            if (found := layout.misfit(rows)) is not None:
                said = self._hear(layout.words(*found))
                (giver, taker), (gives, takes) = found, (said[each] for each in found)
                raise self._rounds.raising(
                    ValueError(
                        f"{intent.operation}: rank {self._ranks[giver]} gives {gives}, which does"
                        f" not fit into {takes} of rank {self._ranks[taker]}"
                    )
                )

    def _hear(self, words: str) -> list[str]:
        """Say something, and return what all say: all members have found the same to be wrong."""
        self._memory.say(self._me, MEANT_TEXT, words)
        self._rounds.meet(self._intent.operation)
        return [self._memory.said(each, MEANT_TEXT) for each in range(len(self._ranks))]
