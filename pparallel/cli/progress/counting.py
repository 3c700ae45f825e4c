"""What is counted of one member, event by event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pparallel.cli.progress import short
from pparallel.cli.progress.meter import Meter
from pparallel.errors import is_consequence
from pparallel.runtime.events import (
    Event,
    GradientsLost,
    GradientsRefused,
    MemberEnded,
    MemberStarted,
    PeerLost,
    Pulled,
    Pushed,
    Reduced,
    Reported,
    TaskDone,
    TaskDropped,
    TaskFailed,
    TaskQueued,
)

State = Literal["waiting", "running", "done", "failed", "stopped"]
Source = Literal["report", "push", "reduce", "reports"]

KEYS = 32  #: how many of the keys that a member reports are kept
_LARGEST = 1e15  #: a step beyond is none, nor is one that is infinite or no number

#: What a tally counts; events of tasks are many, and are asked for where they are shown.
KINDS: tuple[type[Event], ...] = (
    MemberStarted,
    MemberEnded,
    PeerLost,
    Reported,
    Pushed,
    Reduced,
    Pulled,
    GradientsRefused,
    GradientsLost,
)
TASK_KINDS: tuple[type[Event], ...] = (TaskQueued, TaskDone, TaskFailed, TaskDropped)


#: What tells of a member's steps, the best first.
SOURCES: tuple[Source, ...] = ("report", "push", "reduce", "reports")


@dataclass(slots=True)
class Counted:
    """What is counted of one member.

    The lock of its tally guards it, but for ``texts``: who reads puts those there.
    """

    state: State = "waiting"
    why: str = ""
    started: float | None = None
    ended: float | None = None
    active: float = 0.0
    meters: dict[Source, Meter] = field(default_factory=dict)
    fresh: dict[str, object] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    tasks: Counter[str] = field(default_factory=Counter)
    gradients: dict[str, Counter[str]] = field(default_factory=dict)


def _started(member: Counted, event: MemberStarted) -> None:
    member.state, member.started = "running", event.time


def _ended(member: Counted, event: MemberEnded) -> None:
    member.ended = event.time
    if event.error is None:
        member.state = "done"
    elif is_consequence(event.error):
        member.state = "stopped"
    else:
        member.state = "failed"
        member.why = f"{type(event.error).__name__}: {short.value(event.error, 80)}"


def _reported(member: Counted, event: Reported) -> None:
    values = dict(event.values)
    step = values.get("step")
    if isinstance(step, int | float) and not isinstance(step, bool) and abs(step) < _LARGEST:
        member.meters.setdefault("report", Meter()).count(event.time, step)
        del values["step"]
    member.meters.setdefault("reports", Meter()).add(event.time)
    member.fresh.update(values)
    for key in list(member.fresh)[:-KEYS]:
        del member.fresh[key]


def _pushed(member: Counted, event: Pushed) -> None:
    member.meters.setdefault("push", Meter()).add(event.time)
    _gradients(member, event.reducer, "pushed", 1)


def _reduced(member: Counted, event: Reduced) -> None:
    member.meters.setdefault("reduce", Meter()).add(event.time)
    _gradients(member, event.reducer, "reduced", event.gradients)


def _gradients(member: Counted, reducer: str, what: str, count: int) -> None:
    member.gradients.setdefault(reducer, Counter())[what] += count


def _tasks(what: str) -> Callable[[Counted, Any], None]:
    def count(member: Counted, event: Any) -> None:
        member.tasks[what] += getattr(event, "tasks", 1)

    return count


COUNTERS: Mapping[type[Event], Callable[[Counted, Any], None]] = {
    MemberStarted: _started,
    MemberEnded: _ended,
    Reported: _reported,
    Pushed: _pushed,
    Reduced: _reduced,
    GradientsRefused: lambda member, event: _gradients(
        member, event.reducer, "refused", event.gradients
    ),
    GradientsLost: lambda member, event: _gradients(member, event.reducer, "lost", event.gradients),
    TaskQueued: _tasks("queued"),
    TaskDone: _tasks("done"),
    TaskFailed: _tasks("failed"),
    TaskDropped: _tasks("dropped"),
}
