"""Who takes part in a round, and when it is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from pparallel_reducers.diloco.weights import Weights

#: What a user can do about steps that are not averaged.
LATE_ADVICE = "Give a longer 'round_timeout', or each member as much to do as the others"
NOT_FINITE_ADVICE = "Set 'refuse_nan', clip the gradients, or lower the learning rate"


class Outcome(NamedTuple):
    """What became of what a member handed in.

    Attributes:
        accepted: whether it is in the outer parameters.
        version: their version now.
    """

    accepted: bool
    version: int


@dataclass(eq=False, slots=True)
class Part:
    """What a member hands in.

    Attributes:
        sender: the member.
        version: of the outer parameters that it began with.
        steps: how many it made since; none if it stops, or if all were refused.
        stops: whether it makes no more.
        weights: make what it has now from the outer parameters that it began with; None if that
            has a fault, or if it made no steps.
        fault: why it has no weights, if it made steps, and what to do.
        outcome: ends when the round does, or all rounds do if it stops.
        accepted: what the outcome is to say.
    """

    sender: str
    version: int
    steps: int
    stops: bool
    weights: Callable[[Weights], Weights] | None
    fault: str | None = None
    outcome: Future[Outcome] = field(default_factory=Future)
    accepted: bool = False

    @property
    def in_round(self) -> bool:
        """Whether the round is over only when its sender has handed it in."""
        return self.steps > 0 or not self.stops


class Rounds:
    """Keeps the list of those who are there, round by round.

    A member that missed a round is not waited for until it comes back.
    """

    def __init__(self, members: Iterable[str], timeout: float | None) -> None:
        self._order = {name: rank for rank, name in enumerate(members)}
        self._live = set(self._order)
        self._absent: set[str] = set()
        self._timeout = timeout
        self._deadline: float | None = None
        self._parts: dict[str, Part] = {}
        self._stopped: dict[str, Part] = {}

    def note(self, part: Part, now: float, *, late: bool) -> None:
        """Note that the sender of *part* is there; a late part is in no round."""
        self._absent.discard(part.sender)
        if part.stops:
            self._stopped[part.sender] = part
        if late or not part.in_round:
            return
        self._parts[part.sender] = part
        if self._deadline is None and self._timeout is not None:
            self._deadline = now + self._timeout

    def lose(self, member: str) -> None:
        """Wait no more for *member*, which ended; what it handed in counts."""
        self._live.discard(member)

    def left(self, now: float) -> float | None:
        """Return how long the round may still wait; None is without limit."""
        return None if self._deadline is None else max(0.0, self._deadline - now)

    def give_up(self) -> list[str]:
        """Wait in this round for nobody any more; return for whom it would have."""
        missing = self._missing()
        self._absent.update(missing)
        return sorted(missing)

    def is_full(self) -> bool:
        """Whether there are parts, and nobody else is waited for."""
        return bool(self._parts) and not self._missing()

    def is_last(self) -> bool:
        """Whether no member will hand in anything more."""
        return self._live <= self._stopped.keys()

    def take(self) -> list[Part]:
        """Return the parts of the round, in the order of the members, and begin the next."""
        parts = sorted(self._parts.values(), key=lambda part: self._order[part.sender])
        self._parts, self._deadline = {}, None
        return parts

    def stopped(self) -> list[Part]:
        """Return the parts of those that stopped."""
        return list(self._stopped.values())

    def _missing(self) -> set[str]:
        return self._live - self._absent - self._parts.keys() - self._stopped.keys()
