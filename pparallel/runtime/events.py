"""What happens in a member, for whoever wants to know."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        kind: what: ``"member.started"``, ``"member.ended"``, ``"peer.lost"``, ``"report"``, ...
        member: where.
        values: the facts.
        time: when, in seconds since the epoch.
    """

    kind: str
    member: str
    values: Mapping[str, object]
    time: float = field(default_factory=time.time)


Listener = Callable[[Event], None]


class Events:
    """The events of one member; emitting costs one attribute look-up when nobody listens."""

    def __init__(self, member: str) -> None:
        self._member = member
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Have *listener* called with each event, in the thread where it happens.

        Returns:
            A function that ends the subscription.
        """
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not listener)

        return unsubscribe

    def emit(self, kind: str, **values: object) -> None:
        """Tell the listeners; one that raises is logged and does not disturb the others."""
        if not self._listeners:
            return
        event = Event(kind, self._member, values)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                logger.exception("A listener failed on %s", event)
