"""The event stream of one member, and how it is read."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from typing_extensions import override

from pparallel.runtime.events.kinds import Event

logger = logging.getLogger(__name__)

Listener = Callable[[Event], object]


class Events:
    """The events of one member.

    What tells of an event looks at :attr:`listening` first, and makes the event only then.

    Attributes:
        member: the member's name.
        listening: whether there is a listener.
    """

    def __init__(self, member: str) -> None:
        self.member = member
        self.listening = False
        self._wanted: dict[type[Event], bool] = {}
        self._followers: list[Callable[[], object]] = []
        self._lock = threading.Lock()
        self._listeners: tuple[tuple[Listener, tuple[type[Event], ...]], ...] = ()
        self._streams: set[EventStream] = set()
        self._ended = False

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
        """Return whether a listener would be told of some event of *kind*."""
        wanted = self._wanted  # one that is replaced meanwhile is not to be filled
        if kind not in wanted:
            kinds = [each for _, several in self._listeners for each in several]
            wanted[kind] = any(issubclass(kind, each) or issubclass(each, kind) for each in kinds)
        return wanted[kind]

    def follow(self, changed: Callable[[], object]) -> None:
        """Have *changed* called now and whenever what is wanted may have changed.

        So who tells of much need not ask each time. It must return at once, and not subscribe.
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
        return EventStream(self, kinds, size)

    def end(self) -> None:
        """Close the streams: whoever waits for an event waits no more."""
        with self._lock:
            self._ended = True
            streams = list(self._streams)
        for each in streams:
            each.close()

    def add(self, stream: EventStream) -> bool:
        """Have :meth:`end` close *stream*; return whether it is not too late."""
        with self._lock:
            self._streams.add(stream)
            return not self._ended

    def discard(self, stream: EventStream) -> None:
        """Forget a stream that is closed."""
        with self._lock:
            self._streams.discard(stream)

    def _set(self, listeners: tuple[tuple[Listener, tuple[type[Event], ...]], ...]) -> None:
        self._listeners = listeners
        self._wanted = {}
        self.listening = bool(listeners)
        for changed in self._followers:
            changed()

    def emit(self, event: Event) -> None:
        """Tell the listeners of *event*."""
        for listener, kinds in self._listeners:
            if isinstance(event, kinds):
                try:
                    listener(event)
                except Exception:
                    logger.exception("A listener failed on %s", event)


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
        if not self._events.add(self):
            self.close()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take no more events; those that wait can still be read. Safe to call again."""
        with self._changed:
            unsubscribe, self._unsubscribe = self._unsubscribe, None
            self._changed.notify_all()
        if unsubscribe is not None:
            unsubscribe()
            self._events.discard(self)

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
