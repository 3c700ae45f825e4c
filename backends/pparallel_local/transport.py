"""Local transport: members are threads of one process."""

from __future__ import annotations

import logging
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError
from pparallel.interfaces.transport import Frames, Meeting, Receiver, Transport
from pparallel.runtime.flat_views import own

if TYPE_CHECKING:
    from pparallel.runtime.member import Member
    from pparallel_local.config import LocalTransportConfig


logger = logging.getLogger(__name__)


class _Hub:
    """Where the members of one job in this process find one another."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._here: dict[str, LocalTransport] = {}
        self._left: set[str] = set()

    def join(self, transport: LocalTransport, names: Sequence[str], timeout: float) -> None:
        """Enter, and wait until all of *names* have."""
        with self._changed:
            if transport.name in self._here or transport.name in self._left:
                raise PeerLostError(transport.name, "has been a member of this job already")
            self._here[transport.name] = transport
            self._changed.notify_all()
            everybody = self._changed.wait_for(
                lambda: transport.closed or self._left or not self._missing(names), timeout
            )
            if transport.closed:
                self._here.pop(transport.name, None)  # it may have closed before it came
                raise ClosedError(f"transport of {transport.name!r}")
            missing = self._missing(names)
            if not everybody:
                raise CallTimeoutError(f"the arrival of {', '.join(missing)}", timeout)
            if missing:
                raise PeerLostError(sorted(self._left)[0], "left before all had arrived")

    def leave(self, transport: LocalTransport) -> None:
        """Leave, and tell the others."""
        with self._changed:
            if self._here.get(transport.name) is not transport:
                self._changed.notify_all()
                return
            del self._here[transport.name]
            self._left.add(transport.name)
            others = list(self._here.values())
            self._changed.notify_all()
        for other in others:
            other.peer_left(transport.name)

    def find(self, name: str) -> LocalTransport:
        found = self._here.get(name)
        if found is None:
            raise PeerLostError(name, "has left" if name in self._left else "is not a member")
        return found

    def names(self) -> list[str]:
        with self._changed:
            return list(self._here)

    def _missing(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self._here and name not in self._left]


#: Hubs by address, as long as somebody is in them; as ``inproc://`` addresses are to ZeroMQ.
_hubs: weakref.WeakValueDictionary[str, _Hub] = weakref.WeakValueDictionary()
_hubs_lock = threading.Lock()


class LocalTransport(Transport):
    """Carries messages by calling the receiver, in the sender's thread.

    The receiver never blocks, so neither does the sender. Memory that could change is copied once:
    what arrives is the receiver's own.
    """

    is_local = True

    def __init__(self, config: LocalTransportConfig, *, member: Member) -> None:
        self._config = config
        self._member = member
        self._hub: _Hub | None = None
        self._receiver: Receiver | None = None
        self._lock = threading.Lock()  # guards what has arrived
        #: messages, by sender, and then None: its end
        self._arrived: dict[str, deque[Frames | None]] = {name: deque() for name in member.names}
        self._taking: set[str] = set()  # senders of whom a thread passes messages on
        self.closed = False

    @property
    @override
    def name(self) -> str:
        return self._member.name

    @override
    def members(self) -> list[str]:
        return self._opened().names()

    @override
    def open(self, receiver: Receiver) -> None:
        address = self._member.rendezvous or f"alone:{uuid.uuid4().hex}"
        with _hubs_lock:
            self._hub = hub = _hubs.setdefault(address, _Hub())
        self._receiver = receiver
        hub.join(self, self._member.names, self._config.rendezvous_timeout)

    @override
    def close(self) -> None:
        self.closed = True
        if self._hub is not None:
            self._hub.leave(self)

    @override
    def send(self, to: str, frames: Frames) -> None:
        peer = self._opened().find(to)
        if peer is self:
            raise PeerLostError(to, "is no other member")
        peer.take(self.name, own(frames))

    def take(self, sender: str, frames: Frames | None) -> None:
        """Pass on a message, or with None the end of *sender*, after what came before of it."""
        self._arrived[sender].append(frames)
        self._pass_on(sender)

    def _pass_on(self, sender: str) -> None:
        with self._lock:
            if sender in self._taking:
                return  # another thread, or this one further up, passes it on
            self._taking.add(sender)
        try:
            while self._take_next(sender):
                pass
        except BaseException:  # an interrupt of this thread, for which the others do not wait
            self._taking.discard(sender)
            self._pass_on(sender)
            raise

    def _take_next(self, sender: str) -> bool:
        """Pass on what has waited longest of *sender*; return False when nothing waits."""
        with self._lock:
            if not self._arrived[sender]:
                self._taking.discard(sender)
                return False
            frames = self._arrived[sender].popleft()
        if self._receiver is not None and not self.closed:
            try:
                if frames is None:
                    self._receiver.on_lost(sender, "has left")
                else:
                    self._receiver.on_message(sender, frames)
            except Exception:
                logger.exception("%s could not take a message of %s", self.name, sender)
        return True

    def peer_left(self, name: str) -> None:
        """Report the end of a member."""
        self.take(name, None)

    @classmethod
    @override
    @contextmanager
    def meeting(cls, config: Any, names: Sequence[str]) -> Iterator[Meeting]:
        address = f"local:{uuid.uuid4().hex}"
        hub = _Hub()
        with _hubs_lock:
            _hubs[address] = hub  # held until the launch ends, whenever the members come and go
        yield Meeting(address)
        del hub

    def _opened(self) -> _Hub:
        if self._hub is None or self.closed:
            why = "is closed" if self.closed else "is not open"
            raise ClosedError(f"transport of {self.name!r}", why)
        return self._hub
