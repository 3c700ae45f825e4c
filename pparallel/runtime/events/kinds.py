"""The kinds of events, one class each."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(slots=True)
class Event:
    """Something that happened in a member; all listeners are given one object, not to be changed.

    Attributes:
        kind: what, as a word for logs and files.
        member: where.
        time: when, in seconds since the epoch.
    """

    kind: ClassVar[str]
    member: str
    time: float = field(default_factory=time.time, kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as a mapping, its ``kind`` first; exceptions are given by their repr."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        plain = {
            name: repr(value) if isinstance(value, BaseException) else value
            for name, value in values.items()
        }
        return {"kind": self.kind, **plain}


@dataclass(slots=True)
class MemberStarted(Event):
    """A member has met the others and begins with its work."""

    kind: ClassVar[str] = "member.started"
    rank: int


@dataclass(slots=True)
class MemberEnded(Event):
    """A member has left; *error* is what it left by, ``None`` if it was done."""

    kind: ClassVar[str] = "member.ended"
    error: BaseException | None


@dataclass(slots=True)
class PeerLost(Event):
    """Another member, *peer*, has ended."""

    kind: ClassVar[str] = "peer.lost"
    peer: str
    reason: str


@dataclass(slots=True)
class Reported(Event):
    """The target said how it is doing, by ``rt.report(**values)``."""

    kind: ClassVar[str] = "report"
    values: Mapping[str, object]


@dataclass(slots=True)
class TaskEvent(Event):
    """Something about tasks of a pool.

    Attributes:
        pool: the pool's name among the components.
        batch: a number that the tasks handed over together share, and no others of the member.
    """

    pool: str
    batch: int


@dataclass(slots=True)
class TaskQueued(TaskEvent):
    """A pool was handed tasks 0 to *tasks* - 1 of a batch.

    Each of them ends once: done, failed or dropped.
    """

    kind: ClassVar[str] = "task.queued"
    tasks: int
    function: str


@dataclass(slots=True)
class TaskStarted(TaskEvent):
    """A worker starts to run a task."""

    kind: ClassVar[str] = "task.started"
    index: int
    worker: str


@dataclass(slots=True)
class TaskDone(TaskEvent):
    """A task has returned."""

    kind: ClassVar[str] = "task.done"
    index: int


@dataclass(slots=True)
class TaskFailed(TaskEvent):
    """A task has raised *error*, or could not be run because of it."""

    kind: ClassVar[str] = "task.failed"
    index: int
    error: BaseException


@dataclass(slots=True)
class TaskRetried(TaskEvent):
    """A task is run again, since *error* ended it before."""

    kind: ClassVar[str] = "task.retried"
    index: int
    error: BaseException


@dataclass(slots=True)
class TaskDropped(TaskEvent):
    """*tasks* of a batch are not wanted any more: it was cancelled, or another of them failed."""

    kind: ClassVar[str] = "task.dropped"
    tasks: int


@dataclass(slots=True)
class ReducerEvent(Event):
    """Something about gradients; *reducer* is its name among the components."""

    reducer: str


@dataclass(slots=True)
class Pushed(ReducerEvent):
    """A gradient of this member was accepted."""

    kind: ClassVar[str] = "push"


@dataclass(slots=True)
class Reduced(ReducerEvent):
    """The optimizer of this member took a step.

    Attributes:
        gradients: how many gradients it stands on.
        version: the number of the parameters after it.
        staleness: by how many steps the gradients were behind, on average.
    """

    kind: ClassVar[str] = "reduce"
    gradients: int
    version: int
    staleness: float


@dataclass(slots=True)
class Pulled(ReducerEvent):
    """This member took the newer parameters of number *version*."""

    kind: ClassVar[str] = "pull"
    version: int


@dataclass(slots=True)
class GradientsRefused(ReducerEvent):
    """Gradients that arrived here were refused.

    Attributes:
        gradients: how many.
        sender: the member that handed them in.
        late: whether they came before reducing started, after it stopped, or after their round.
        reason: why, in words.
    """

    kind: ClassVar[str] = "gradients.refused"
    gradients: int
    sender: str
    late: bool
    reason: str


@dataclass(slots=True)
class GradientsLost(ReducerEvent):
    """*gradients* of this member were accepted, and ended with the member that held them."""

    kind: ClassVar[str] = "gradients.lost"
    gradients: int
    peer: str
