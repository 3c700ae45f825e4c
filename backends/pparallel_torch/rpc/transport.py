"""RequestTransport on torch.distributed.rpc."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    RemoteError,
    SerializationError,
)
from pparallel.interfaces.transport import Frames, Meeting
from pparallel.runtime.flat_views import own
from pparallel.runtime.future import fail, settle
from pparallel.runtime.job_folder import JobFolder
from pparallel.runtime.links import FAILED, OK, Membership, answer, failure
from pparallel.runtime.links.ordering import Ordering
from pparallel.runtime.pending import Pending, awaited
from pparallel.runtime.request_transport import Handler, RequestTransport
from pparallel.runtime.resources import start_thread
from pparallel_torch.rpc import agent as torch_agent
from pparallel_torch.rpc import remote
from pparallel_torch.rpc.agent import Agent
from pparallel_torch.rpc.arrival import Arrival
from pparallel_torch.rpc.far import FarWatch, Ping
from pparallel_torch.rpc.farewells import Farewells
from pparallel_torch.rpc.frames import pack, unpack
from pparallel_torch.rpc.quiet import Quiet

if TYPE_CHECKING:
    import torch

    from pparallel.runtime.member import Member
    from pparallel_torch.config import TorchRpcTransportConfig

GIVEN_UP = 2  #: how a request ended, besides OK and FAILED: its sender is a member no more
FLUSH = 1.0  #: seconds that closing waits for requests that are handled, and replies underway
CONNECT = 30.0  #: seconds in which all that have come are to connect

_RAISED_THERE = "On WorkerInfo"  #: how torch begins what it says of an exception in the receiver

Answer = Callable[[tuple[Any, ...]], None]
Reply = Callable[[int, Frames], None]


class TorchRpcTransport(RequestTransport):
    """Carries each request as a call of torch's, whose answer is the reply.

    Members meet in a store of torch's and say there who they are. Ends are seen by
    :class:`~pparallel.runtime.links.Membership` on this machine, and by :class:`FarWatch` on
    others; the first member tells all others of each.
    """

    def __init__(self, config: TorchRpcTransportConfig, *, member: Member) -> None:
        self._config = config
        self._member = member
        self._ranks = {name: rank for rank, name in enumerate(member.names)}
        self._membership = Membership(
            member.name, member.names, config.liveness_bound, self._peer_ended
        )
        self._pending: Pending[Frames] = Pending(f"transport of {member.name!r}")
        self._handler: Handler | None = None
        self._arrival = Arrival(member, self._membership, lambda: self._closed)
        self._farewells = Farewells()
        self._quiet = Quiet()
        self._numbers = {name: itertools.count() for name in member.names}
        self._orders = {name: Ordering() for name in member.names}
        self._far = FarWatch(config.liveness_bound, self._ping, self._membership.lose)
        self._agent: Agent | None = None
        self._lock = threading.RLock()
        self._opened = self._claimed = self._closed = False
        self._settled = threading.Event()  # nothing is being opened
        self._settled.set()
        self._closer = threading.Thread(target=self._shut, name="pparallel-torch-rpc-close")
        self._inside = threading.local()  # whether this thread must not wait for the closer

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
        self._handler = handler
        self._settled.clear()
        try:
            if self._member.world_size > 1:
                self._connect()
            with self._lock:
                if self._closed:
                    raise ClosedError(f"transport of {self.name!r}")
                self._opened = True
        except BaseException:
            self._settled.set()
            self.close()
            raise
        self._settled.set()

    @override
    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._closer.ident is None:  # with the lock: who closes at the same time waits
                start_thread(self._closer)
        self._pending.close()
        if not getattr(self._inside, "callback", False):
            self._closer.join()

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        agent = self._check_open()
        self._membership.check(to)
        future = self._pending.add(to, timeout)
        if agent is None or to == self.name:
            reply = _replier(self.name, future)
            self._handle(to, own(frames), lambda status, found: reply(status, own(found)))
            return future
        try:
            self._send(agent, to, frames, future)
        except Exception as error:  # noqa: BLE001 - torch raises anything
            fail(future, SerializationError(f"a request to {to!r}", error))
        return future

    def _send(self, agent: Agent, to: str, frames: Frames, future: Future[Frames]) -> None:
        parcel = pack(frames)
        number = next(self._numbers[to])
        rank, mine = self._ranks[to], self._member.rank
        try:
            sent = agent.call(rank, remote.deliver, mine, number, *parcel)
        except BaseException:  # the requests behind it would wait for it
            agent.call(rank, remote.left_out, mine, number)
            raise
        sent.add_done_callback(lambda done: self._answered(to, future, done))

    @override
    def call(self, to: str, frames: Frames, timeout: float | None = None) -> Frames:
        return awaited(self.request(to, frames), to, timeout)

    @classmethod
    @override
    @contextmanager
    def meeting(cls, config: Any, names: Sequence[str]) -> Iterator[Meeting]:
        # A file needs no port that is free now and might not be later, and only this user's
        # processes can write to it.
        with JobFolder() as folder:
            yield Meeting(f"file://{folder.path}/store")

    # -- what torch's threads bring -----------------------------------------------------------

    def arrived(self, sender: int, number: int, parcel: Any, answered: Answer) -> None:
        """Handle a request of member *sender*, and call *answered* with the answer."""
        name = self._member.names[sender]

        def reply(status: int, frames: Frames) -> None:
            self._farewells.gave(name)
            try:
                parcel = pack(frames)
            except Exception as error:  # noqa: BLE001 - as for want of memory: the caller waits
                status, parcel = FAILED, pack([type(error).__name__.encode(), str(error).encode()])
            answered((status, *parcel))

        with self._in_callback():
            self._farewells.met(name)
            if name not in self._membership.names():
                reply(GIVEN_UP, [self._membership.reason(name).encode()])
                return
            self._orders[name].arrived(number, partial(self._take, name, parcel, reply))

    def _take(self, name: str, parcel: Any, reply: Reply) -> None:
        try:
            frames = unpack(*parcel)
        except Exception as error:  # noqa: BLE001 - as for want of memory: the caller waits
            reply(FAILED, [type(error).__name__.encode(), str(error).encode()])
        else:
            self._handle(name, frames, reply)

    def left_out(self, sender: int, number: int) -> None:
        """Learn that the request of that *number* could not be sent."""
        with self._in_callback():
            self._orders[self._member.names[sender]].arrived(number, _nothing)

    def told(self, name: str, reason: str) -> None:
        """Learn from another member that one has ended."""
        with self._in_callback():
            self._membership.lose(name, reason)

    def left(self, sender: int, replies: int, seen: Answer) -> None:
        """Learn that member *sender* leaves after so many replies; call *seen* when they came."""

        def gone() -> None:
            self._membership.lose(name, "has left")
            seen(())

        name = self._member.names[sender]
        with self._in_callback():
            self._quiet.begin()
            self._farewells.left(name, replies, gone)

    def _answered(self, to: str, future: Future[Frames], done: torch.futures.Future[Any]) -> None:
        with self._in_callback():
            try:
                status, *parcel = done.value()
            except Exception as error:  # noqa: BLE001 - torch raises whatever it was given
                self._unanswered(to, future, error)
                return
            try:
                frames = unpack(*parcel)
            except Exception as error:  # noqa: BLE001 - as for want of memory: the caller waits
                fail(future, SerializationError(f"the reply of {to!r}", error, loading=True))
                self._farewells.received(to)
                return
            if status == GIVEN_UP:
                judged = to == self._membership.first
                reason = bytes(frames[0]).decode()
                self._membership.lose(self.name if judged else to, reason)
                return
            _replier(to, future)(status, frames)
            self._farewells.received(to)

    def _unanswered(self, to: str, future: Future[Frames], error: Exception) -> None:
        if str(error).startswith(_RAISED_THERE):
            fail(future, RemoteError(to, type(error).__name__, str(error), ""))
        elif not self._closed:
            self._membership.lose(to, f"cannot be reached: {error}")

    def _handle(self, sender: str, frames: Frames, reply: Reply) -> None:
        assert self._handler is not None
        answer(self._handler, sender, frames, reply)

    # -- coming -------------------------------------------------------------------------------

    def _connect(self) -> None:
        torch_agent.claim(lambda: self._closed)
        self._claimed = True
        remote.receive_for(self)
        exchange = self._arrival.meet(self._config.rendezvous_timeout)
        far = self._arrival.far(allowed=self._config.allow_insecure)
        try:
            self._agent = Agent(
                exchange.store,
                self._member.rank,
                self._member.world_size,
                threads=self._config.num_worker_threads,
                patience=min(CONNECT, self._config.rendezvous_timeout),
                loopback=not far,
            )
        except RuntimeError as error:
            self._membership.wait_for_all(0)  # one may have ended meanwhile
            raise CallTimeoutError("the connection of all members", CONNECT) from error
        first = self._membership.first
        self._far.start([each for each in far if first in (self.name, each)])

    # -- going --------------------------------------------------------------------------------

    def _peer_ended(self, name: str, reason: str) -> None:
        with self._in_callback():
            if self._membership.is_first:
                self._tell(name, reason)
            self._pending.lose(name, reason)
            self.lost(name, reason)

    def _tell(self, name: str, reason: str) -> None:
        """Tell the others of an end, and the member itself if it only was stopped."""
        told = [each.name for each in self._membership.hellos()]
        ended = self._arrival.hellos.get(name)
        if ended is not None and not (ended.process.watchable and not ended.process.lives()):
            told.append(name)
        if self._agent is not None:
            self._call_each(self._agent, [(each, remote.ended, name, reason) for each in told])

    def _shut(self) -> None:
        """Say good-bye and disconnect; no thread of torch can, for it would wait for itself."""
        self._settled.wait()
        self._far.close()
        if self._agent is not None:
            _wait(lambda: not any(each.busy for each in self._orders.values()))
            self._say_goodbye(self._agent)
            self._agent.close()
            self._quiet.end()
        self._membership.close()
        if self._claimed:
            remote.receive_for(None)
            torch_agent.give_back()

    def _say_goodbye(self, agent: Agent) -> None:
        self._quiet.begin()
        given, first = self._farewells.given(), self._membership.first
        here = {each.name for each in self._membership.hellos()}
        tells_all = first not in here  # else the first tells those who have nothing of us
        early = here - {first} if tells_all else (here & given.keys()) - {first}
        for names in (early, here & {first}):
            calls = [(name, remote.left, self._member.rank, given.get(name, 0)) for name in names]
            goodbyes = self._call_each(agent, calls)
            _wait(partial(_done, goodbyes))

    def _call_each(self, agent: Agent, calls: Iterable[tuple[Any, ...]]) -> list[Ping]:
        with suppress(RuntimeError):  # torch has been shut down meanwhile
            return [agent.call(self._ranks[name], *rest) for name, *rest in calls]
        return []

    def _ping(self, name: str) -> Ping:
        assert self._agent is not None
        return self._agent.ping(self._ranks[name])

    def _check_open(self) -> Agent | None:
        if not self._opened or self._closed:
            why = "is closed" if self._closed else "is not open"
            raise ClosedError(f"transport of {self.name!r}", why)
        return self._agent

    @contextmanager
    def _in_callback(self) -> Iterator[None]:
        """Keep this thread from waiting for its own end if what it calls closes this transport."""
        before = getattr(self._inside, "callback", False)
        self._inside.callback = True
        try:
            yield
        finally:
            self._inside.callback = before


def _replier(peer: str, future: Future[Frames]) -> Reply:
    def reply(status: int, frames: Frames) -> None:
        if status == OK:
            settle(future, frames)
        else:
            fail(future, failure(peer, frames))

    return reply


def _nothing() -> None:
    """Stand for a request that could not be sent."""


def _done(calls: list[Ping]) -> bool:
    return all(each.done() for each in calls)


def _wait(condition: Callable[[], bool]) -> None:
    """Wait until *condition* holds, for a limited time."""
    deadline = time.monotonic() + FLUSH
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
