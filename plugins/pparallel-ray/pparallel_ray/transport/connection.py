"""A member's connection to the broker: who is there, who has ended, and where messages go."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import RayError
from typing_extensions import Buffer

from pparallel.errors import AuthenticationError, CallTimeoutError, PeerLostError
from pparallel.runtime.links import Hello, Membership, ProcessId, RefusedError
from pparallel_ray.transport import meeting
from pparallel_ray.transport.broker import Item
from pparallel_ray.transport.peer import Peer

if TYPE_CHECKING:
    from pparallel.runtime.member import Member
    from pparallel_ray.transport.config import RayTransportConfig
    from pparallel_ray.transport.dispatcher import Dispatcher, Then
    from pparallel_ray.transport.keys import JobKey
    from pparallel_ray.transport.messages import Packed

logger = logging.getLogger(__name__)

PULLS = 2  #: that wait at the broker, so that one does while another is on its way
LOOK = 0.1  #: seconds between two looks whether this member was closed

#: Kinds of notices; ``LAST`` is for its sender alone: all of a member that has ended is here.
ARRIVED, LEFT, LOST, LAST = "arrived", "left", "lost", "last"

_NOTICE = (str, str, bytes, bytes)  #: of the parts: kind, name, text, proof; then comes a broker
_PARCEL = (int, int, bytes, bytes)  #: sender's rank, number, proof, data; then come large frames


class BrokerConnection:
    """Reports who comes and goes, and pulls what others send.

    What comes counts where it is proved by the job's key.

    Attributes:
        peers: the other members.
    """

    def __init__(
        self,
        member: Member,
        config: RayTransportConfig,
        key: JobKey,
        membership: Membership,
        dispatcher: Dispatcher,
        take: Callable[[str, int, list[Buffer]], None],
        ended: Callable[[str], None],
    ) -> None:
        """Know where to report.

        Args:
            member: this member.
            config: the transport's.
            key: the job's.
            membership: learns who comes and goes.
            dispatcher: runs what follows the end of a call.
            take: takes messages: their senders, kinds and frames.
            ended: called with the name of a member that has ended, after the last of its messages.
        """
        self._member, self._config, self._key = member, config, key
        self._membership, self._dispatcher, self._ended = membership, dispatcher, ended
        self.peers = {
            name: Peer(
                partial(self._push, name),
                partial(self._unreachable, name),
                partial(take, name),
                dispatcher,
                config.max_queued,
            )
            for name in member.names
            if name != member.name
        }
        self._brokers: dict[str, Any] = {}  # of members on other machines
        self._broker: Any = None
        self._own: Any = None  # beside this member, on another machine than the broker

    def open(self, broker: Any, timeout: float, check: Callable[[], None]) -> None:
        """Report this member, and begin to receive.

        Raises:
            AuthenticationError: this member is not let in.
            PeerLostError: the broker has ended.
            ClosedError: *check*, which is called now and then, raised it.
            CallTimeoutError: the broker did not answer within *timeout* seconds.
        """
        name = self._member.name
        here = ray.get_runtime_context().get_node_id()
        if self._answered(broker.node.remote().future(), timeout, check) != here:
            self._own = meeting.start(None, [name], self._config.max_queued)
        self._key = self._key.of(_identity(broker))
        hello = Hello(name, secrets.token_bytes(16), ProcessId.here(), _identity(self._own))
        notice = self._notice(ARRIVED, name, hello.pack(), self._own)
        arrival = broker.arrive.remote(name, notice).future()
        if refusal := self._answered(arrival, timeout, check):
            raise AuthenticationError(f"member {name!r} {refusal}")
        self._broker = broker
        for source in (broker, self._own):
            for _ in range(PULLS if source is not None else 0):
                self._pull(source)

    def lost(self, name: str, reason: str) -> None:
        """Report the end of member *name* when what the broker has of it by now is here.

        The first member reports it to all, that one too, which may only have been stopped.
        """

        def pushed(_: object, error: BaseException | None) -> None:
            if error is not None:  # else the notice itself comes back by a pull
                self._end(name)

        ask, last = self._dispatcher.ask, self._notice(LAST, name, b"")
        if self._membership.is_first:
            ask(self._broker.notify, self._notice(LOST, name, reason.encode()), then=_ignore)
        ask((self._own or self._broker).push, self._member.name, last, 0, then=pushed)

    def close(self, timeout: float) -> None:
        """Report that this member has left, and receive no more."""
        try:
            if self._broker is not None:
                notice = self._notice(LEFT, self._member.name, b"has left")
                wait([self._broker.leave.remote(self._member.name, notice).future()], timeout)
            if self._own is not None:
                ray.kill(self._own)
        except (RayError, RuntimeError) as error:
            logger.debug("%s could not report that it leaves: %s", self._member.name, error)

    # -- sending ------------------------------------------------------------------------------

    def _push(self, to: str, number: int, message: Packed, size: int, then: Then) -> None:
        proof = self._key.proof(b"parcel", self._member.name.encode(), to.encode())
        parcel = self._member.rank, number, proof, message.data, message.large
        push = self._brokers.get(to, self._broker).push
        self._dispatcher.ask(push, to, parcel, size, then=then)

    def _unreachable(self, name: str, error: BaseException) -> None:
        """Give member *name* up: a push to it raised *error*."""
        is_own = name in self._brokers
        reason = f"cannot be reached: {_first_line(error)}" if is_own else _cut_off_by(error)
        self._membership.lose(name, reason)

    def _notice(self, kind: str, name: str, text: bytes, broker: Any = None) -> Item:
        return kind, name, text, self._key.proof(kind.encode(), name.encode(), text), broker

    # -- receiving ----------------------------------------------------------------------------

    def _pull(self, source: Any) -> None:
        self._dispatcher.ask(source.pull, self._member.name, then=partial(self._pulled, source))

    def _pulled(self, source: Any, items: list[Item] | None, error: BaseException | None) -> None:
        if error is not None:
            self._cut_off(error)
        elif items is not None:
            self._pull(source)
            for item in items:
                types = tuple(map(type, item[:-1])) if isinstance(item, tuple) else ()
                if types == _NOTICE:
                    self._noticed(*item)
                elif types == _PARCEL and self._is_parcel(item[0], item[4]):
                    self._delivered(*item)
                else:
                    logger.warning("dropped what somebody sent that is no parcel of a member")

    def _is_parcel(self, rank: int, large: object) -> bool:
        if not 0 <= rank < self._member.world_size or rank == self._member.rank:
            return False
        return isinstance(large, list) and all(type(each) is ObjectRef for each in large)

    def _delivered(
        self, rank: int, number: int, proof: bytes, data: bytes, large: list[Any]
    ) -> None:
        name = self._member.names[rank]
        if not self._key.holds(proof, b"parcel", name.encode(), self._member.name.encode()):
            logger.warning("dropped a parcel that %s has not sent, as it says", name)
        else:
            self.peers[name].arrived(number, data, large)

    def _noticed(self, kind: str, name: str, text: bytes, proof: bytes, broker: Any) -> None:
        if not self._key.holds(proof, kind.encode(), name.encode(), text):
            logger.warning("dropped a notice of %s by somebody without the job's key", name)
        elif kind == ARRIVED:
            if name != self._member.name:
                self._admit(name, text, broker)
        elif kind == LAST:
            self._end(name)
        else:
            self._membership.lose(name, text.decode())

    def _admit(self, name: str, text: bytes, broker: Any) -> None:
        try:
            hello = Hello.unpack(text)
            if (hello.name, hello.address) != (name, _identity(broker)):
                raise RefusedError("its hello is of another member")
        except RefusedError as error:
            self._membership.refused(name, str(error))
            return
        if broker is not None:
            self._brokers[name] = broker
        try:
            self._membership.admit(hello)
        except RefusedError as error:
            logger.debug("%s is not let in: %s", name, error)
            return
        self.peers[name].admit()
        judged = self._membership.is_first or name == self._membership.first
        if judged and hello.process.host_id != ProcessId.here().host_id:
            self._watch(name, hello)

    def _watch(self, name: str, hello: Hello) -> None:
        """Have a member of another machine watched there, by what it pulls from."""

        def ended(how: str | None, error: BaseException | None) -> None:
            self._membership.lose(name, how or f"cannot be reached: {_first_line(error)}")

        end_of = self._brokers.get(name, self._broker).end_of
        bound = self._config.liveness_bound
        self._dispatcher.ask(end_of, tuple(hello.process), bound, then=ended)

    def _cut_off(self, error: BaseException) -> None:
        for name in self.peers:
            self._membership.lose(name, _cut_off_by(error))
            self._end(name)  # whose last messages may have been on their way

    def _end(self, name: str) -> None:
        self.peers[name].end(partial(self._ended, name))

    def _answered(self, answer: Future[str], timeout: float, check: Callable[[], None]) -> str:
        deadline = time.monotonic() + timeout
        while not wait([answer], LOOK).done:
            check()
            if time.monotonic() >= deadline:
                raise CallTimeoutError("the broker where the members meet", timeout)
        try:
            return answer.result()
        except RayError as error:
            reason = f"is not where the members meet ({_first_line(error)})"
            raise PeerLostError(self._member.names[0], reason) from error


def _ignore(_: object, error: BaseException | None) -> None:
    if error is not None:
        logger.debug("the end of a member could not be reported: %s", error)


def _identity(broker: Any) -> str:
    return broker._actor_id.hex() if isinstance(broker, ActorHandle) else ""


def _cut_off_by(error: BaseException) -> str:
    return f"cannot be reached: where the members met is no more ({_first_line(error)})"


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
