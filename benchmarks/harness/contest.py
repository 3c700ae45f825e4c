"""What a benchmark hands to the harness: contenders, and what ours has to reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

Samples = Mapping[str, float]
"""What one turn measured, by metric: seconds, or bytes where the metric is of memory."""

Turn = Callable[[int], Samples]
"""One contender's part of one round, called with the round's number."""


class Aim(NamedTuple):
    """How many times as good as a peer one of ours has to be.

    Attributes:
        peer: The contender that it is compared with.
        at_least: The peer's figure over ours; None: the two are compared, and that is all.
        metric: Which of the figures.
        ours: Which contender; None: the first.
    """

    peer: str
    at_least: float | None
    metric: str = "wall"
    ours: str | None = None


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Contenders that take turns.

    Attributes:
        contenders: By name; the first is ours and compared with every other that no aim calls ours.
        aims: What has to be reached; the pairs that they name are compared too.
        pins: The ways of `pinning` to run it in, one after the other.
        rounds: How many rounds count, unless the user says otherwise.
        warm_up: Whether a first round is run that does not count.
        left_out: Who would contend too, and why it cannot on this machine.
    """

    contenders: Mapping[str, Turn]
    aims: Sequence[Aim] = ()
    pins: Sequence[str] = ("two",)
    rounds: int = 7
    warm_up: bool = True
    left_out: Mapping[str, str] = field(default_factory=dict)

    def pairs(self) -> list[tuple[str, str]]:
        """Return who is compared with whom: ours, and the peer."""
        ours, *others = self.contenders
        also_ours = {aim.ours for aim in self.aims}
        pairs = [(ours, peer) for peer in others if peer not in also_ours]
        named = [(aim.ours or ours, aim.peer) for aim in self.aims]
        strangers = {name for pair in named for name in pair} - set(self.contenders)
        if strangers:
            raise ValueError(f"aims name {sorted(strangers)}, which do not contend")
        return list(dict.fromkeys([*pairs, *named]))


@dataclass(frozen=True)
class Setting:
    """What the user asked for.

    Attributes:
        quick: Whether it is only to be seen that everything runs.
        backend: The pool that is measured as ours, by its name in a config.
        rounds: How many rounds count; None: as many as the contest has.
    """

    quick: bool = False
    backend: str = "process"
    rounds: int | None = None

    def count(self, full: int, quick: int) -> int:
        """Return how many of something there are."""
        return quick if self.quick else full


Making = Callable[[Setting], AbstractContextManager[Contest]]
"""Opens the contenders of one contest, and closes them."""
