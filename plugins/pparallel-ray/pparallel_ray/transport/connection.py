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
from ray.actor import ActorHandle
from ray.exceptions import RayError

from pparallel.errors import AuthenticationError, CallTimeoutError, ClosedError, PeerLostError
from pparallel.runtime.links import Hello, Membership, ProcessId, RefusedError
from pparallel_ray.transport import meeting
from pparallel_ray.transport.broker import Item

if TYPE_CHECKING:
    from pparallel.runtime.member import Member
    from pparallel_ray.transport.config import RayTransportConfig
    from pparallel_ray.transport.dispatcher import Dispatcher
    from pparallel_ray.transport.inbound import Inbound
    from pparallel_ray.transport.keys import JobKey

logger = logging.getLogger(__name__)

PULLS = 2  #: that wait at the broker, so that one does while another is on its way
LOOK = 0.1  #: seconds between two looks whether this member was closed

#: Kinds of notices; ``LAST`` is for its sender alone: all of a member that has ended is here.
ARRIVED, LEFT, LOST, LAST = "arrived", "left", "lost", "last"

_TYPES = (str, str, bytes, bytes)  #: of the parts of a notice, but for the broker at its end


class BrokerConnection:
    """Reports who comes and goes, and pulls what others send.

    A notice counts where it is proved by the job's key.
    """

    def __init__(
        self,
        member: Member,
        config: RayTransportConfig,
        key: JobKey,
        membership: Membership,
        inbound: Inbound,
        dispatcher: Dispatcher,
        ended: Callable[[str], None],
    ) -> None:
        """Know where to report.

        Args:
            member: this member.
            config: the transport's.
            key: the job's.
            membership: learns who comes and goes.
            inbound: takes parcels.
            dispatcher: runs what follows the end of a call.
            ended: called when the last message of a member that has ended is here.
        """
        self._member, self._config, self._key = member, config, key
        self._membership, self._inbound, self._dispatcher = membership, inbound, dispatcher
        self._ended = ended
        self._incarnation = secrets.token_bytes(16)
        self._brokers: dict[str, Any] = {}  # of members on other machines
        self._broker: Any = None
        self._own: Any = None  # beside this member, on another machine than the broker
        self._ending: set[str] = set()

    def open(self, broker: Any, timeout: float) -> None:
        """Report this member, and begin to receive.

        Raises:
            AuthenticationError: this member is not let in.
            PeerLostError: the broker has ended.
            ClosedError: this member was closed meanwhile.
            CallTimeoutError: the broker did not answer within *timeout* seconds.
        """
        name = self._member.name
        here = ray.get_runtime_context().get_node_id()
        if self._answered(broker.node.remote().future(), timeout) != here:
            self._own = meeting.start(None, [name], self._config.max_queued)
        hello = Hello(name, self._incarnation, ProcessId.here(), _identity(self._own))
        notice = self._notice(ARRIVED, name, hello.pack(), self._own)
        refusal = self._answered(broker.arrive.remote(name, notice).future(), timeout)
        if refusal:
            raise AuthenticationError(f"member {name!r} {refusal}")
        self._broker = broker
        for source in (broker, self._own):
            for _ in range(PULLS if source is not None else 0):
                self._pull(source)

    def proof_to(self, name: str) -> bytes:
        """Return what proves to member *name* that this one sends."""
        hello = self._membership.hello(name)
        there = b"" if hello is None else hello.incarnation
        return self._key.proof(b"parcel", self._incarnation, there)

    def push_to(self, name: str) -> Callable[[Item, int], Any]:
        """Return a function that pushes a parcel of so many bytes to member *name*."""
        push = self._brokers.get(name, self._broker).push
        return lambda parcel, size: push.remote(name, parcel, size)

    def unreachable(self, name: str, error: BaseException) -> str:
        """Return why parcels do not reach member *name*: the push raised *error*."""
        if name in self._brokers:
            return f"cannot be reached: {_first_line(error)}"
        return _cut_off_by(error)

    def report_lost(self, name: str, reason: str) -> None:
        """Report the end of member *name* to all, itself too if it only was stopped."""
        try:
            self._broker.notify.remote(self._notice(LOST, name, reason.encode()))
        except (RayError, RuntimeError) as error:
            logger.debug("the end of %s could not be reported: %s", name, error)

    def await_last(self, name: str) -> None:
        """Have *ended* called once what the broker has of member *name* by now is here."""
        self._ending.add(name)
        try:
            push = (self._own or self._broker).push
            pushed = push.remote(self._member.name, self._notice(LAST, name, b""), 0)
        except (AttributeError, RayError, RuntimeError):
            self._dispatcher.call(partial(self._end, name))
        else:
            # The notice itself comes back by a pull, unless it could not be left there.
            self._dispatcher.when_done(pushed, partial(self._left_notice, name))

    def _left_notice(self, name: str, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._end(name)

    def _end(self, name: str) -> None:
        if name in self._ending:
            self._ending.discard(name)
            self._ended(name)

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

    # -- receiving ----------------------------------------------------------------------------

    def _pull(self, source: Any) -> None:
        try:
            pulled = source.pull.remote(self._member.name)
        except (RayError, RuntimeError) as error:
            self._cut_off(error)
        else:
            self._dispatcher.when_done(pulled, partial(self._pulled, source))

    def _pulled(self, source: Any, items: list[Item] | None, error: BaseException | None) -> None:
        if error is not None:
            self._cut_off(error)
        elif items is not None:
            self._pull(source)
            for item in items:
                if isinstance(item, tuple) and tuple(map(type, item[:-1])) == _TYPES:
                    self._noticed(*item)
                else:
                    self._inbound.arrived(item)

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
        proof = self._key.proof(b"parcel", hello.incarnation, self._incarnation)
        self._inbound.admit(name, partial(_same, proof))
        judged = self._membership.is_first or name == self._membership.first
        if judged and hello.process.place != ProcessId.here().place:
            self._watch(name, hello)

    def _watch(self, name: str, hello: Hello) -> None:
        """Have a member of another machine watched there, by what it pulls from."""

        def ended(how: str | None, error: BaseException | None) -> None:
            if not self._membership.closed:
                why = how or f"cannot be reached: {_first_line(error)}"
                self._membership.lose(name, why)

        broker = self._brokers.get(name, self._broker)
        end = broker.end_of.remote(tuple(hello.process), self._config.liveness_bound)
        self._dispatcher.when_done(end, ended)

    def _cut_off(self, error: BaseException) -> None:
        for name in list(self._ending):
            self._end(name)
        for name in self._member.names:
            if name != self._member.name and not self._membership.closed:
                self._membership.lose(name, _cut_off_by(error))

    def _answered(self, answer: Future[str], timeout: float) -> str:
        deadline = time.monotonic() + timeout
        while not wait([answer], LOOK).done:
            if self._membership.closed:
                raise ClosedError(f"transport of {self._member.name!r}")
            if time.monotonic() >= deadline:
                raise CallTimeoutError("the broker where the members meet", timeout)
        try:
            return answer.result()
        except RayError as error:
            reason = f"is not where the members meet ({_first_line(error)})"
            raise PeerLostError(self._member.names[0], reason) from error

    def _notice(self, kind: str, name: str, text: bytes, broker: Any = None) -> Item:
        return kind, name, text, self._key.proof(kind.encode(), name.encode(), text), broker


def _identity(broker: Any) -> str:
    return broker._actor_id.hex() if isinstance(broker, ActorHandle) else ""


def _same(proof: bytes, given: object) -> bool:
    return isinstance(given, bytes) and secrets.compare_digest(proof, given)


def _cut_off_by(error: BaseException) -> str:
    return f"cannot be reached: where the members met is no more ({_first_line(error)})"


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
