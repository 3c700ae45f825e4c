"""Local transport: members are threads of one process."""

from __future__ import annotations

import logging
import os
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from pparallel.errors import PeerLostError
from pparallel.interfaces.transport import Frames, Meeting
from pparallel.runtime.flat_views import own
from pparallel.runtime.links import BaseTransport, Hello, ProcessId

if TYPE_CHECKING:
    from pparallel.runtime.member import Member
    from pparallel_local.config import LocalTransportConfig


logger = logging.getLogger(__name__)


class _LocalJob:
    """The members of one job in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # one member joins or leaves at a time
        self.here: dict[str, LocalTransport] = {}
        self.left: set[str] = set()

    def join(self, transport: LocalTransport) -> None:
        """Enter, and learn who is there and who has left."""
        name = transport.name
        with self._lock:
            if name in self.here or name in self.left:
                raise PeerLostError(name, "has been a member of this job already")
            others, left = list(self.here.values()), list(self.left)
            self.here[name] = transport  # first: one that knows of it sends at once
            for other in others:
                transport.meet(other.name)
                other.meet(name)
        for other_name in left:
            transport.lose(other_name)

    def leave(self, transport: LocalTransport) -> None:
        """Leave, and have the others know."""
        name = transport.name
        with self._lock:
            if self.here.get(name) is not transport:
                return
            del self.here[name]
            self.left.add(name)
            others = list(self.here.values())
        for other in others:
            other.lose(name)


#: Jobs by address, as long as a member is in them; as ``inproc://`` addresses are to ZeroMQ.
_jobs: weakref.WeakValueDictionary[str, _LocalJob] = weakref.WeakValueDictionary()
_jobs_lock = threading.Lock()


class LocalTransport(BaseTransport["LocalTransportConfig"]):
    """Carries messages by calling the receiver, in the sender's thread.

    The receiver never blocks, so neither does the sender. Memory that could change is copied once:
    what arrives is the receiver's own.
    """

    is_local = True

    def __init__(self, config: LocalTransportConfig, *, member: Member) -> None:
        super().__init__(config, member)
        self._job: _LocalJob | None = None
        self._lock = threading.Lock()  # guards what has arrived
        #: messages, by sender, and then None: its end
        self._arrived: dict[str, deque[Frames | None]] = {name: deque() for name in member.names}
        self._taking: set[str] = set()  # senders of whom a thread passes messages on

    @override
    def _listen(self) -> None:
        address = self._member.rendezvous or f"alone:{uuid.uuid4().hex}"
        with _jobs_lock:
            self._job = _jobs.setdefault(address, _LocalJob())
        self._job.join(self)

    @override
    def _meet(self) -> None:
        try:
            super()._meet()
        except PeerLostError:
            job = self._job
            if job is None or not {*job.here, *job.left}.issuperset(self._member.names):
                raise  # or one has come and gone before this thread saw that all were here

    @override
    def close(self) -> None:
        self._closed = True
        self._membership.close()
        if self._job is not None:
            self._job.leave(self)

    @override
    def send(self, to: str, frames: Frames) -> None:
        peer = None if self._closed or self._job is None else self._job.here.get(to)
        if peer is None or peer is self:
            self._check_peer(to)
            raise PeerLostError(to, "has left")
        peer.take(self._member.name, own(frames))

    def meet(self, name: str) -> None:
        """Let a member in."""
        self._membership.admit(Hello(name, b"", ProcessId(b"", os.getpid(), 0)))

    def lose(self, name: str) -> None:
        """Take note that a member has left."""
        self._membership.lose(name, "has left")

    @override
    def _member_ended(self, name: str, reason: str) -> None:
        self.take(name, None)

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
        if self._receiver is not None and not self._closed:
            try:
                if frames is None:
                    self._receiver.on_lost(sender, self._membership.reason(sender))
                else:
                    self._receiver.on_message(sender, frames)
            except Exception:
                logger.exception("%s could not take a message of %s", self.name, sender)
        return True

    @classmethod
    @override
    @contextmanager
    def meeting(cls, config: Any, names: Sequence[str]) -> Iterator[Meeting]:
        address = f"local:{uuid.uuid4().hex}"
        job = _LocalJob()
        with _jobs_lock:
            _jobs[address] = job  # held until the launch ends, whenever the members come and go
        yield Meeting(address)
        del job
