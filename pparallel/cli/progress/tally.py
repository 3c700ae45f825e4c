"""Counts what the members of a job tell."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pparallel.cli.progress import short
from pparallel.cli.progress.counting import COUNTERS, KEYS, SOURCES, Counted, State
from pparallel.runtime.events import Event, PeerLost


@dataclass(frozen=True, slots=True)
class Tasks:
    """How many tasks of a member's pools were handed over, and what became of them."""

    queued: int = 0
    done: int = 0
    failed: int = 0
    dropped: int = 0

    @property
    def wanted(self) -> int:
        """How many were handed over and not dropped."""
        return self.queued - self.dropped


@dataclass(frozen=True, slots=True)
class Standing:
    """How a member stands.

    Attributes:
        name: the member.
        rank: its number.
        state: ``stopped`` is a member that had to end because another failed.
        why: what it failed by.
        steps: the newest step that it reported; else how often it pushed, reduced or reported.
        rate: steps in a second lately.
        mean: steps in a second on the whole.
        seconds: since it started, up to its end.
        active: when it last told of anything, in seconds since the epoch; 0: never.
        values: what it reported last, by key, in few characters.
        tasks: of its pools.
        gradients: what became of gradients, by reducer.
    """

    name: str
    rank: int
    state: State
    why: str
    steps: float | None
    rate: float | None
    mean: float | None
    seconds: float | None
    active: float
    values: Mapping[str, str]
    tasks: Tasks
    gradients: Mapping[str, Mapping[str, int]]


class Tally:
    """Counts the events of all members, in whatever threads they happen.

    To hear an event costs little: values are put into words by who looks at them.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._members: dict[str, Counted] = {}
        self._lost: dict[str, str] = {}
        self.expect(names)

    def expect(self, names: Iterable[str]) -> None:
        """Say who the members are, by rank."""
        with self._lock:
            for name in names:
                self._members.setdefault(name, Counted())

    def hear(self, event: Event) -> None:
        """Count *event*."""
        count = COUNTERS.get(type(event))
        with self._lock:
            member = self._members.setdefault(event.member, Counted())
            member.active = event.time
            if isinstance(event, PeerLost):
                self._lost.setdefault(event.peer, event.reason)
            elif count is not None:
                count(member, event)

    @property
    def lost(self) -> dict[str, str]:
        """The members that others have lost, and why."""
        with self._lock:
            return dict(self._lost)

    @property
    def begun(self) -> bool:
        """Whether any member has started."""
        with self._lock:
            return any(each.state != "waiting" for each in self._members.values())

    def rank(self, name: str) -> int | None:
        """Return a member's number, ``None`` if there is no such member."""
        with self._lock:
            names = list(self._members)
        return names.index(name) if name in names else None

    def standings(self) -> list[Standing]:
        """Return how each member stands, by rank."""
        now = time.time()
        with self._reading:
            with self._lock:
                fresh = {name: each.fresh for name, each in self._members.items() if each.fresh}
                for name in fresh:
                    self._members[name].fresh = {}
            for name, values in fresh.items():  # a value may take its time to become text
                _keep(self._members[name].texts, values)
            with self._lock:
                members = enumerate(self._members.items())
                return [_standing(name, rank, each, now) for rank, (name, each) in members]


def _keep(texts: dict[str, str], values: Mapping[str, object]) -> None:
    for key, each in values.items():
        texts.pop(key, None)  # what was reported last comes last
        texts[key] = short.value(each)
    for key in list(texts)[:-KEYS]:
        del texts[key]


def _standing(name: str, rank: int, member: Counted, now: float) -> Standing:
    meter = next((member.meters[each] for each in SOURCES if each in member.meters), None)
    seconds = None
    if member.started is not None:
        seconds = max(0.0, (now if member.ended is None else member.ended) - member.started)
    return Standing(
        name,
        rank,
        member.state,
        member.why,
        meter.steps if meter else None,
        meter.rate(now) if meter else None,
        meter.mean() if meter else None,
        seconds,
        member.active,
        dict(member.texts),
        Tasks(**member.tasks),
        {reducer: dict(counts) for reducer, counts in member.gradients.items()},
    )
