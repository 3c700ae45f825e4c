"""Ipc transport: members are processes of one machine."""

from __future__ import annotations

import math
import os
import secrets
import stat
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr
from typing_extensions import override

from pparallel.errors import CallTimeoutError, ClosedError, ConfigError, PeerLostError
from pparallel.interfaces.transport import Frames, Handler, Meeting, Transport
from pparallel.runtime.delivery import Delivery
from pparallel.runtime.future import LeanFuture
from pparallel.runtime.interrupts import raise_interrupt
from pparallel.runtime.job_folder import JobFolder
from pparallel.runtime.links import Hello, Membership, ProcessId
from pparallel.runtime.memory import Arena
from pparallel.runtime.pending import Pending, awaited
from pparallel_ipc.station import Station

if TYPE_CHECKING:
    from pparallel.runtime.member import Member
    from pparallel_ipc.config import IpcTransportConfig
    from pparallel_ipc.line import Line

_KEY = "ipc"  #: where a member finds the job's key among its own
_ROOM = 90  #: bytes of a folder's path, so that a socket's fits in the kernel's 108


class IpcTransport(Transport):
    """Carries requests over Unix sockets, and what is large through shared memory.

    A call is sent and its answer received by the caller's own thread, and served by a thread that
    does nothing else meanwhile. Requests that do not wait share one connection to each member, and
    leave many at a time.
    """

    def __init__(self, config: IpcTransportConfig, *, member: Member) -> None:
        self._config, self._member = config, member
        self._pending: Pending[Frames] = Pending(f"transport of {member.name!r}")
        self._membership = Membership(
            member.name, member.names, config.liveness_bound, self._member_ended
        )
        self._to_self: Delivery | None = None
        self._station: Station | None = None
        self._lines: dict[str, Line] = {}
        self._pid = 0
        self._closing = threading.Lock()
        self._closed = False

    @property
    @override
    def name(self) -> str:
        return self._member.name

    @override
    def members(self) -> list[str]:
        self._check_open()
        return self._membership.names()

    @override
    def open(self, handler: Handler) -> None:
        with self._closing:
            if self._closed:
                self._check_open()
            self._pid = os.getpid()
            self._to_self = Delivery(self.name, handler)
            _opened.add(self)
            if self._member.world_size == 1:
                return
            me = Hello(self.name, uuid.uuid4().bytes, ProcessId.here())
            self._station = station = Station(
                self._config, self._member, me, self._membership, handler, self._key()
            )
            self._lines = station.lines
            station.open(self._folder())
        station.meet(self._config.rendezvous_timeout)

    @override
    def close(self) -> None:
        with self._closing:
            self._closed = True
        _opened.discard(self)
        self._membership.close()
        if self._to_self is not None:
            self._to_self.finish()
        station, self._station = self._station, None
        if station is not None:
            station.finish()
        self._pending.close()  # before the others hear: what they do then is no answer
        if station is not None:
            station.close()

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        future: Future[Frames] = LeanFuture()
        self.send(to, frames, timeout, future)
        return future

    @override
    def send(self, to: str, frames: Frames, timeout: float | None, future: Future[Frames]) -> None:
        line = self._lines.get(to)
        if line is None or self._closed:
            line = self._line(to)
        self._pending.watch(future, to, timeout)
        if line is None:
            assert self._to_self is not None
            self._to_self.deliver(to, frames, future)
        else:
            line.request(frames, future)

    @override
    def call(self, to: str, frames: Frames, timeout: float | None = None) -> Frames:
        until, left = math.inf if timeout is None else time.monotonic() + timeout, timeout
        line = self._lines.get(to)
        if line is None or self._closed:
            line = self._line(to)  # which connects
            left = _left(until)
        try:
            if line is not None and (reply := line.call(frames, left, until)) is not None:
                return reply
            future, left = self.request(to, frames), _left(until)
            with self.awaiting(to, future.done, left):
                return awaited(future, to, left)
        except EOFError as error:
            raise_interrupt(error)
            raise self._why_ended(to) from None
        except CallTimeoutError as error:
            raise_interrupt(error)
            raise CallTimeoutError(f"a request to {to!r}", timeout or 0.0) from None

    @override
    def awaiting(
        self, to: str, is_done: Callable[[], bool], timeout: float | None
    ) -> AbstractContextManager[object]:
        line = self._lines.get(to)
        if line is None:
            return super().awaiting(to, is_done, timeout)
        return line.awaiting(is_done, timeout)

    def arena(self, of: str) -> Arena | None:
        """As :meth:`SharesMemory.arena`."""
        station = self._station
        return None if station is None else station.arena(of)

    @classmethod
    @override
    @contextmanager
    def meeting(cls, config: Any, names: Sequence[str]) -> Iterator[Meeting]:
        key = SecretStr(secrets.token_hex(32))
        with JobFolder() as folder:
            yield Meeting(str(folder.path), {name: {_KEY: key} for name in names})

    def _line(self, to: str) -> Line | None:
        """Return the way to member *to*; ``None``: it is this one."""
        self._check_open()
        if to == self.name:
            return None
        self._membership.check(to)
        station = self._station
        if station is None:
            raise PeerLostError(to, "is not a member")
        return station.line(to)

    def _member_ended(self, name: str, reason: str) -> None:
        station = self._station
        if station is not None:
            station.lose(name, reason)
        self._pending.lose(name, reason)
        self.lost(name, reason)

    def _why_ended(self, name: str) -> Exception:
        """Return why the connection to *name* has ended."""
        if not self._closed:
            self._membership.wait_for_end(name)
        if self._closed:
            return ClosedError(f"transport of {self.name!r}")
        if name in self._membership.names():
            return PeerLostError(name, "has dropped the call; its log says why")
        return PeerLostError(name, self._membership.reason(name))

    def _check_open(self) -> None:
        if self._closed or self._to_self is None:
            why = "is closed" if self._closed else "is not open"
            if self._closed and self._pid not in (0, os.getpid()):
                why = f"belongs to process {self._pid}, of which this one is a fork"
            raise ClosedError(f"transport of {self.name!r}", why)

    def _folder(self) -> Path:
        given = self._config.directory
        if given is None and (self._member.rendezvous or "").startswith("/"):
            given = Path(str(self._member.rendezvous))
        if given is None:
            message = (
                "nothing says where the members meet: start them with pparallel.launch, "
                "or give transport.directory, a folder of mode 700, and transport.key"
            )
            raise ConfigError(message, path="transport.directory")
        return _checked(given)

    def _key(self) -> bytes:
        key = self._member.keys.get(_KEY) or self._config.key
        if key is None:
            message = (
                "members prove to one another that they are of one job, and there is no key: start "
                "them with pparallel.launch, or give all of them the same transport.key"
            )
            raise ConfigError(message, path="transport.key")
        return key.get_secret_value().encode()


def _left(until: float) -> float | None:
    return None if until == math.inf else max(0.0, until - time.monotonic())


def _checked(folder: Path) -> Path:
    """Return *folder* if members may meet there.

    Raises:
        ConfigError: there is no such folder, or others may enter it, or its path is too long.
    """
    path = "transport.directory"
    if len(os.fsencode(folder)) > _ROOM:
        raise ConfigError(f"{folder} is too long for a socket: use a shorter path", path=path)
    try:
        found = folder.stat()
    except OSError as error:
        message = f"members cannot meet in {folder}: {error.strerror}; make it with mkdir -m 700"
        raise ConfigError(message, path=path) from None
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{folder} is no folder", path=path)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        message = f"others may enter {folder}: make it your own, with mode 700"
        raise ConfigError(message, path=path)
    return folder


_opened: weakref.WeakSet[IpcTransport] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_opened):
        each._closed = True
    _opened.clear()


os.register_at_fork(after_in_child=_after_fork)
