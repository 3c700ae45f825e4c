"""Transport on torch.distributed.rpc."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import get_ident, main_thread
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from pparallel.errors import CallTimeoutError, SerializationError
from pparallel.interfaces.transport import Frames, Meeting
from pparallel.runtime.job_folder import JobFolder
from pparallel.runtime.links import BaseTransport
from pparallel.runtime.links.ordering import Ordering
from pparallel.runtime.resources import explaining, start_thread
from pparallel_torch.config import TorchRpcTransportConfig
from pparallel_torch.rpc import agent as torch_agent
from pparallel_torch.rpc.agent import Agent, Done
from pparallel_torch.rpc.arrival import far_members, meet
from pparallel_torch.rpc.frames import pack, unpack
from pparallel_torch.rpc.heartbeat import Heartbeat

if TYPE_CHECKING:
    from pparallel.runtime.member import Member

logger = logging.getLogger(__name__)

FLUSH = 1.0  #: seconds that closing waits for what was sent to arrive
LAST = 1.0  #: seconds within which the last messages of a member that has died are looked for
CONNECT = 30.0  #: seconds in which all that have come are to connect

HELD = 16  #: calls of one member that wait here at most for a message that answers them

MESSAGE, RESET, LOST, BYE = range(4)  #: kinds of messages

_LEFT = "has left"


class _Peer:
    """Another member: messages to it, and the order of those from it.

    torch brings messages in any order, so each has a number, and says from which one on those
    before it will not come.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.lock = threading.Lock()  # guards the numbers and calls
        self.number = 0  # of the next message
        self.sent = 0  # messages that have been, or will not be
        self.calls: deque[Done] = deque()  # of it, that have no answer yet
        self.order = Ordering()

    def was_used(self) -> bool:
        """Return whether any message went to it or came from it."""
        return self.number > 0 or self.order.has_begun


class TorchRpcTransport(BaseTransport[TorchRpcTransportConfig]):
    """Carries each message as a call of torch's, or as the answer to a call of the other member.

    Members meet in a store of torch's and say there who they are. Ends are seen by
    :class:`~pparallel.runtime.links.Membership` on this machine, and by :class:`Heartbeat` on
    others; the first member reports each to all others.
    """

    def __init__(self, config: TorchRpcTransportConfig, *, member: Member) -> None:
        super().__init__(config, member)
        self._peers = {
            name: _Peer(rank) for rank, name in enumerate(member.names) if name != member.name
        }
        self._heartbeat = Heartbeat(config.liveness_bound, self._ping, self._membership.lose)
        self._agent: Agent | None = None
        self._lock = threading.RLock()
        self._closer = threading.Thread(target=self._shut, name="pparallel-torch-rpc-close")
        self._inside = threading.local()  # whether this thread must not wait for the closer

    @classmethod
    @override
    @contextmanager
    def meeting(cls, config: Any, names: Sequence[str]) -> Iterator[Meeting]:
        # A file needs no port that is free now and might not be later, and only this user's
        # processes can write to it.
        with JobFolder() as folder:
            yield Meeting(f"file://{folder.path}/store")

    # -- opening ------------------------------------------------------------------------------

    @override
    def _listen(self) -> None:
        membership, config, me = self._membership, self._config, self._member
        torch_agent.claim(self)
        store = meet(me, membership, config.rendezvous_timeout, self._check_open)
        far = far_members(me, membership, allowed=config.allow_insecure)
        try:
            self._agent = Agent(
                store,
                me.rank,
                me.world_size,
                threads=config.num_worker_threads,
                patience=min(CONNECT, config.rendezvous_timeout),
                loopback=not far,
            )
        except RuntimeError as error:
            membership.wait_for_all(0)  # one may have ended meanwhile
            raise CallTimeoutError("the connection of all members", CONNECT) from error
        self._heartbeat.start([each for each in far if membership.first in (self.name, each)])

    # -- messages -----------------------------------------------------------------------------

    @override
    def send(self, to: str, frames: Frames) -> None:
        self._check_peer(to)
        what = f"a message to {to!r}"
        try:
            with explaining(what):
                self._send(to, MESSAGE, frames)
        except RuntimeError as error:  # of torch's
            self._check_open()
            raise SerializationError(what, error) from error

    def _send(self, to: str, kind: int, frames: Frames) -> Done | None:
        """Send a message; return the call that it is, or ``None`` if it is an answer."""
        agent, peer = self._agent, self._peers[to]
        if agent is None:  # others have come, and not all yet
            raise RuntimeError("the members are not connected yet")
        parcel, sent = pack(frames), None
        with peer.lock:
            number, peer.number = peer.number, peer.number + 1
            message = self._member.rank, peer.sent, number, kind, *parcel
            # torch would swallow what a signal handler raises inside of an answer; and that to a
            # farewell says that all has been taken.
            if peer.calls and kind != BYE and get_ident() != main_thread().ident:
                peer.calls.popleft().set_result(message)
            else:
                sent = agent.call(peer.rank, torch_agent.deliver, *message)
            peer.sent = number + 1  # unless something was raised
        if sent is not None:
            sent.add_done_callback(partial(self._answered, to))
        return sent

    def _answered(self, to: str, call: Done) -> None:
        """Take the message that has come as the answer to a call, if any."""
        try:
            message = call.value()
        except Exception as error:  # noqa: BLE001 - torch raises whatever it was given
            if not self._closed:
                self._cut_off(to, error)
        else:
            if message is not None:
                self.arrived(None, *message)

    def _cut_off(self, name: str, error: BaseException) -> None:
        hello = self._membership.hello(name)
        if hello is not None and hello.process.watchable:
            self._membership.wait_for_end(name)  # its connections break before it has died
        self._membership.lose(name, f"cannot be reached: {error}")

    def arrived(
        self, call: Done | None, sender: int, after: int, number: int, kind: int, *parcel: Any
    ) -> None:
        """Take a message; a thread of torch's calls it.

        Args:
            call: that it is, to be answered.
            sender: the member's rank.
            after: the number from which on those before it will not come.
            number: of the message.
            kind: of the message.
            parcel: its frames.
        """
        name = self._member.names[sender]
        peer = self._peers[name]
        with self._in_callback():
            if call is not None and kind != BYE:
                with peer.lock:
                    peer.calls.append(call)
                    surplus = peer.calls.popleft() if len(peer.calls) > HELD else None
                if surplus is not None:
                    surplus.set_result(None)
            act: Callable[[], None]
            try:
                act = partial(self._take, name, kind, unpack(*parcel), call)
            except Exception as error:  # noqa: BLE001 - as for want of memory
                act = partial(self._unread, name, error)
            for each in range(after, number):
                peer.order.arrived(each, _nothing)
            peer.order.arrived(number, act)

    def _take(self, name: str, kind: int, frames: Frames, call: Done | None) -> None:
        assert self._receiver is not None
        if kind == MESSAGE:
            if not self._closed:
                self._receiver.on_message(name, frames)
        elif kind == RESET:
            self._report_reset(name, f"could not take a message: {_text(frames[0])}")
        elif kind == BYE:
            assert call is not None
            call.set_result(None)
            self._membership.lose(name, _LEFT)
        elif name == self._membership.first:
            self._membership.lose(*map(_text, frames))

    def _unread(self, name: str, error: Exception) -> None:
        self._report_reset(name, f"sent a message that could not be taken: {error!r}")
        if not self._send_all([name], RESET, [repr(error).encode()]) and not self._closed:
            self._membership.lose(name, f"cannot be reached: {error!r}")

    # -- ends ---------------------------------------------------------------------------------

    @override
    def _member_ended(self, name: str, reason: str) -> None:
        if self._membership.is_first:
            others = [each.name for each in self._membership.hellos()]
            if reason != _LEFT:
                others.append(name)  # which may only have been stopped
            self._send_all(others, LOST, [name.encode(), reason.encode()])
        end = partial(self._end, name, reason)
        try:
            if self._agent is None or reason == _LEFT:
                raise RuntimeError("nothing more comes")
            # What torch has read of that member by now is handled before this is answered.
            self._agent.ping(self._member.rank, LAST).add_done_callback(end)
        except RuntimeError:
            end()

    def _end(self, name: str, reason: str, _: Done | None = None) -> None:
        with self._in_callback():
            self._peers[name].order.end(partial(self._report_lost, name, reason))

    def _send_all(self, names: Iterable[str], kind: int, frames: Frames = ()) -> list[Done | None]:
        sent = []
        for name in names:
            try:
                sent.append(self._send(name, kind, frames))
            except (RuntimeError, MemoryError) as error:
                logger.debug("a notice to %s could not be sent: %s", name, error)
        return sent

    # -- closing ------------------------------------------------------------------------------

    @property
    def is_closing(self) -> bool:
        """Whether it gives torch's agent back soon."""
        return self._closed

    @override
    def close(self) -> None:
        if self._parent:
            return  # torch's threads are the parent's
        with self._lock:
            self._closed = True
            if self._closer.ident is None:  # with the lock: who closes at the same time waits
                start_thread(self._closer)
        if not getattr(self._inside, "callback", False):
            self._closer.join()

    def _shut(self) -> None:
        """Take leave and disconnect; no thread of torch can, for it would wait for itself."""
        with self._opening:  # which ends soon
            agent = self._agent
        self._heartbeat.close()
        if agent is not None:
            self._leave()
            agent.close()
        self._membership.close()
        torch_agent.give_back(self)

    def _leave(self) -> None:
        """Send a farewell to all that need one, and wait until what was sent has arrived.

        Others learn of it from the first member, which has it last if messages to them may be
        under way.
        """
        here, first = [each.name for each in self._membership.hellos()], self._membership.first
        others = [name for name in here if name != first]
        if first in here:
            others = [name for name in others if self._peers[name].was_used()]
        deadline = time.monotonic() + FLUSH
        for names in (others, [first] if first in here else []):
            sent = self._send_all(names, BYE)
            while any(each and not each.done() for each in sent) and time.monotonic() < deadline:
                time.sleep(0.001)

    def _ping(self, name: str) -> Done:
        assert self._agent is not None
        return self._agent.ping(self._peers[name].rank)

    @contextmanager
    def _in_callback(self) -> Iterator[None]:
        """Keep this thread from waiting for its own end if what it calls closes this transport."""
        before = getattr(self._inside, "callback", False)
        self._inside.callback = True
        try:
            yield
        finally:
            self._inside.callback = before


def _text(frame: Any) -> str:
    return bytes(frame).decode(errors="replace")


def _nothing() -> None:
    """Stand for a message that will not come."""
