"""A member's end of its connection to the exchange."""

from __future__ import annotations

import logging
import secrets
import time
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from pparallel.errors import AuthenticationError, CallTimeoutError, ClosedError, PeerLostError
from pparallel.runtime.links import Hello, Membership, ProcessId, RefusedError
from pparallel.runtime.member import Member
from pparallel_ray.transport import meeting
from pparallel_ray.transport.config import RayTransportConfig
from pparallel_ray.transport.exchange import Item, Notice
from pparallel_ray.transport.inbound import Inbound
from pparallel_ray.transport.keys import JobKey
from pparallel_ray.transport.outbox import Send
from pparallel_ray.transport.post import Post

logger = logging.getLogger(__name__)

PULLS = 2  #: that wait at the exchange, so that one does while another is on its way
LOOK = 0.1  #: seconds between two looks whether this member was closed

ARRIVED, LEFT, LOST = "arrived", "left", "lost"

_TYPES = (str, str, bytes, bytes)  #: of what a notice has, but for the box


class Link:
    """Tells and hears who is there, and has parcels taken to where their receivers are.

    What others say of themselves and of one another counts where it is proved by the job's key.
    """

    def __init__(
        self,
        member: Member,
        config: RayTransportConfig,
        key: JobKey,
        membership: Membership,
        inbound: Inbound,
        post: Post,
    ) -> None:
        self._member, self._config, self._key = member, config, key
        self._membership, self._inbound, self._post = membership, inbound, post
        self._incarnation = secrets.token_bytes(16)
        self._boxes: dict[str, Any] = {}  # where others receive that are on other machines
        self._exchange: Any = None
        self._box: Any = None

    def arrive(self, exchange: Any, timeout: float) -> None:
        """Say who this member is, and begin to receive.

        Raises:
            AuthenticationError: this member is not let in.
            PeerLostError: the exchange has ended.
            ClosedError: this member was closed meanwhile.
            CallTimeoutError: the exchange did not answer within *timeout* seconds.
        """
        name = self._member.name
        here = ray.get_runtime_context().get_node_id()
        if self._answered(exchange.node.remote().future(), timeout) != here:
            self._box = meeting.start(None, [name], self._config.max_queued)
        hello = Hello(name, self._incarnation, ProcessId.here(), _identity(self._box))
        notice = self._notice(ARRIVED, name, hello.pack(), self._box)
        refusal = self._answered(exchange.arrive.remote(name, notice).future(), timeout)
        if refusal:
            raise AuthenticationError(f"member {name!r} {refusal}")
        self._exchange = exchange
        for source in (exchange, self._box):
            for _ in range(PULLS if source is not None else 0):
                self._pull(source)

    def proof_to(self, name: str) -> bytes:
        """Return what proves to member *name* that this one sends."""
        hello = self._membership.hello(name)
        there = b"" if hello is None else hello.incarnation
        return self._key.proof(b"parcel", self._incarnation, there)

    def way_to(self, name: str) -> Send:
        """Return what takes parcels to member *name*."""
        push = self._boxes.get(name, self._exchange).push
        return lambda parcel, size: push.remote(name, parcel, size)

    def unreachable(self, name: str, error: BaseException) -> str:
        """Return why parcels do not reach member *name*: what takes them raised *error*."""
        if name in self._boxes:
            return f"cannot be reached: {_first_line(error)}"
        return _cut_off_by(error)

    def tell_lost(self, name: str, reason: str) -> None:
        """Have all know that member *name* has ended, itself too if it only was stopped."""
        try:
            self._exchange.tell.remote(self._notice(LOST, name, reason.encode()))
        except (RayError, RuntimeError) as error:
            logger.debug("the end of %s could not be told: %s", name, error)

    def leave(self, timeout: float) -> None:
        """Have the others know that this member has left, and receive no more."""
        try:
            if self._exchange is not None:
                notice = self._notice(LEFT, self._member.name, b"has left")
                wait([self._exchange.leave.remote(self._member.name, notice).future()], timeout)
            if self._box is not None:
                ray.kill(self._box)
        except (RayError, RuntimeError) as error:
            logger.debug("%s could not say that it leaves: %s", self._member.name, error)

    # -- hearing ------------------------------------------------------------------------------

    def _pull(self, source: Any) -> None:
        try:
            pulled = source.pull.remote(self._member.name)
        except (RayError, RuntimeError) as error:
            self._cut_off(error)
        else:
            self._post.when_done(pulled, partial(self._pulled, source))

    def _pulled(self, source: Any, items: list[Item] | None, error: BaseException | None) -> None:
        if error is not None:
            self._cut_off(error)
        elif items is not None:
            self._pull(source)
            for is_notice, item in items:
                if is_notice:
                    self._heard(item)
                else:
                    self._inbound.arrived(item)

    def _heard(self, notice: Notice) -> None:
        if not isinstance(notice, tuple) or tuple(map(type, notice[:-1])) != _TYPES:
            logger.warning("dropped what somebody told that is no word of a member")
            return
        kind, name, text, proof, box = notice
        if not self._key.holds(proof, kind.encode(), name.encode(), text):
            logger.warning("dropped what somebody without the job's key says of %s", name)
        elif kind == ARRIVED:
            if name != self._member.name:
                self._admit(name, text, box)
        else:
            self._membership.lose(name, text.decode())

    def _admit(self, name: str, text: bytes, box: Any) -> None:
        try:
            hello = Hello.unpack(text)
            if (hello.name, hello.address) != (name, _identity(box)):
                raise RefusedError("it is not who it says")
        except RefusedError as error:
            self._membership.refused(name, str(error))
            return
        if box is not None:
            self._boxes[name] = box
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

        box = self._boxes.get(name, self._exchange)
        end = box.end_of.remote(tuple(hello.process), self._config.liveness_bound)
        self._post.when_done(end, ended)

    def _cut_off(self, error: BaseException) -> None:
        if not self._membership.closed:
            for name in self._member.names:
                if name != self._member.name:
                    self._membership.lose(name, _cut_off_by(error))

    def _answered(self, answer: Future[str], timeout: float) -> str:
        deadline = time.monotonic() + timeout
        while not wait([answer], LOOK).done:
            if self._membership.closed:
                raise ClosedError(f"transport of {self._member.name!r}")
            if time.monotonic() >= deadline:
                raise CallTimeoutError("the exchange where the members meet", timeout)
        try:
            return answer.result()
        except RayError as error:
            reason = f"is not where the members meet ({_first_line(error)})"
            raise PeerLostError(self._member.names[0], reason) from error

    def _notice(self, kind: str, name: str, text: bytes, box: Any = None) -> Notice:
        return kind, name, text, self._key.proof(kind.encode(), name.encode(), text), box


def _identity(box: Any) -> str:
    return box._actor_id.hex() if isinstance(box, ActorHandle) else ""


def _same(proof: bytes, given: object) -> bool:
    return isinstance(given, bytes) and secrets.compare_digest(proof, given)


def _cut_off_by(error: BaseException) -> str:
    return f"cannot be reached: where the members met is no more ({_first_line(error)})"


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
