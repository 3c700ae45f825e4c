"""What happens in a member, for listeners: displays, logs, traces and metrics are nothing else.

Where nobody listens, no event is even made.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self
from weakref import WeakSet

from typing_extensions import override

__all__ = [
    "Event",
    "EventStream",
    "Events",
    "GradientsLost",
    "GradientsRefused",
    "Listener",
    "MemberEnded",
    "MemberStarted",
    "PeerLost",
    "Pulled",
    "Pushed",
    "Reduced",
    "ReducerEvent",
    "Reported",
    "TaskDone",
    "TaskDropped",
    "TaskEvent",
    "TaskFailed",
    "TaskQueued",
    "TaskRetried",
    "TaskStarted",
]

logger = logging.getLogger(__name__)


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
    """Something about tasks that were handed over together, as *batch*, to the component *pool*."""

    pool: str
    batch: int


@dataclass(slots=True)
class TaskQueued(TaskEvent):
    """A pool was handed tasks 0 to *tasks* - 1; each ends once: done, failed or dropped."""

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
    """This member's optimizer took a step on *gradients*, on average *staleness* steps behind."""

    kind: ClassVar[str] = "reduce"
    gradients: int
    version: int  #: of the parameters after it
    staleness: float


@dataclass(slots=True)
class Pulled(ReducerEvent):
    """This member took the newer parameters of number *version*."""

    kind: ClassVar[str] = "pull"
    version: int


@dataclass(slots=True)
class GradientsRefused(ReducerEvent):
    """Gradients that arrived here were refused.

    *late* ones came before reducing started, after it stopped, or after their round.
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


Listener = Callable[[Event], object]


class Events:
    """The events of one member.

    A source of events looks at :attr:`listening` first, and makes the event only then.

    Attributes:
        member: the member's name.
        listening: whether there is a listener.
        ended: whether the member's work has ended.
    """

    def __init__(self, member: str) -> None:
        self.member = member
        self.listening = self.ended = False
        self._followers: list[Callable[[], object]] = []
        self._lock = threading.Lock()
        self._listeners: tuple[tuple[Listener, tuple[type[Event], ...]], ...] = ()
        self._streams: WeakSet[EventStream] = WeakSet()

    def subscribe(self, listener: Listener, *kinds: type[Event]) -> Callable[[], None]:
        """Have *listener* called with each event of *kinds*, in the thread where it happens.

        A listener should return at once. One that raises is logged and disturbs nobody.

        Args:
            listener: what to call.
            kinds: classes of events; none at all means every event.

        Returns:
            A function that ends the subscription.
        """
        entry = (listener, kinds or (Event,))
        with self._lock:
            self._set((*self._listeners, entry))

        def unsubscribe() -> None:
            with self._lock:
                self._set(tuple(each for each in self._listeners if each is not entry))

        return unsubscribe

    def wants(self, kind: type[Event]) -> bool:
        """Return whether there is a listener for some events of *kind*."""
        kinds = [each for _, several in self._listeners for each in several]
        return any(issubclass(kind, each) or issubclass(each, kind) for each in kinds)

    def follow(self, changed: Callable[[], object]) -> None:
        """Have *changed* called now and whenever what is wanted may have changed.

        So a source of many events need not ask each time. It must return at once and not subscribe.
        """
        with self._lock:
            self._followers.append(changed)
            changed()

    def stream(self, *kinds: type[Event], size: int = 10_000) -> EventStream:
        """Return what reads the events of *kinds* that happen inside its ``with``, one by one.

        It ends with the member's work, and when the job does.

        Args:
            kinds: classes of events; none at all means every event.
            size: how many events wait at most; of more, the oldest are left out and counted.
        """
        stream = EventStream(self, kinds, size)
        with self._lock:
            self._streams.add(stream)
        return stream

    def end(self) -> None:
        """Close the streams: their readers wait no more."""
        with self._lock:
            self.ended = True
            streams = list(self._streams)
        for each in streams:
            each.close()

    def emit(self, event: Event) -> None:
        """Tell the listeners of *event*."""
        for listener, kinds in self._listeners:
            if isinstance(event, kinds):
                try:
                    listener(event)
                except Exception:
                    logger.exception("A listener failed on %s", event)

    def _set(self, listeners: tuple[tuple[Listener, tuple[type[Event], ...]], ...]) -> None:
        self._listeners = listeners
        self.listening = bool(listeners)
        for changed in self._followers:
            changed()


class EventStream(Iterator[Event]):
    """Events to read, in the order in which they were told; made by :meth:`Events.stream`.

    Attributes:
        left_out: how many events were not read in time and are gone.
    """

    def __init__(self, events: Events, kinds: tuple[type[Event], ...], size: int) -> None:
        if size < 1:
            message = f"a stream holds at least 1 event, not {size}"
            raise ValueError(message)
        self._events = events
        self._kinds = kinds
        self._waiting: deque[Event] = deque(maxlen=size)
        self._changed = threading.Condition()
        self._unsubscribe: Callable[[], None] | None = None
        self.left_out = 0

    def __enter__(self) -> Self:
        self._unsubscribe = self._events.subscribe(self._put, *self._kinds)
        if self._events.ended:
            self.close()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take no more events; those that wait can still be read. Safe to call again."""
        with self._changed:
            unsubscribe, self._unsubscribe = self._unsubscribe, None
            self._changed.notify_all()
        if unsubscribe is not None:
            unsubscribe()

    def get(self, timeout: float | None = None) -> Event | None:
        """Return the next event.

        Args:
            timeout: seconds to wait for it; ``None``: until the stream is closed.

        Returns:
            The event, or ``None`` if none came in time or none will come any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._unsubscribe is None, timeout)
            return self._waiting.popleft() if self._waiting else None

    @override
    def __next__(self) -> Event:
        event = self.get()
        if event is None:
            raise StopIteration
        return event

    def _put(self, event: Event) -> None:
        with self._changed:
            self.left_out += len(self._waiting) == self._waiting.maxlen
            self._waiting.append(event)
            self._changed.notify()
