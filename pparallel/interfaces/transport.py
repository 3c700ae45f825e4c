"""Transport: carry messages between named members."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from pydantic import Field, SecretStr
from typing_extensions import Buffer

from pparallel.config import BackendConfig

Frames = Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class Meeting:
    """How the members of one launched job find and recognise one another.

    Attributes:
        address: where they meet; only the transport knows how to read it.
        keys: what each member needs to know to be let in, by the member's name: each is told its
            own alone, and finds it in ``Member.keys``.
    """

    address: str
    keys: Mapping[str, Mapping[str, SecretStr]] = field(default_factory=dict, repr=False)


class Receiver(Protocol):
    """The user of a transport, which takes what arrives.

    No method raises, except for a defect: the transport logs that and goes on.
    """

    def on_message(self, sender: str, frames: Frames) -> None:
        """Take a message of another member.

        A thread of the transport calls it, for the messages of one sender one at a time and in the
        order in which they were sent. It does not block, and may empty a list of frames.
        """

    def on_exchange(self, sender: str, frames: Frames) -> Frames | Future[Frames]:
        """Answer a request of another member that waits for the reply.

        The thread of a connection that serves nothing else meanwhile calls it; it may block. A
        future that is returned is answered when it is done, and one that never is, not at all.
        """

    def on_reset(self, name: str, error: BaseException) -> None:
        """Take note that messages to or from a member that is there may have been lost.

        *error* says why. Messages that are sent later arrive.
        """

    def on_lost(self, name: str, reason: str) -> None:
        """Take note that a member has ended: once for each, after the last of its messages."""


class Transport(ABC):
    """Carries messages between the named members of one job.

    It knows nothing of functions, requests, names of objects or groups: those stand above it, in
    ``pparallel.runtime.rpc``, and are the same for every transport. There, too, is what a member
    sends to itself.

    Guarantees:
        - A message arrives with the frames it was sent with, empty ones, huge ones and many
          (``TransportSuite.test_frames_arrive_as_sent``).
        - Any thread may send, and a message arrives once or, where :meth:`Receiver.on_reset` or
          :meth:`Receiver.on_lost` says so, perhaps not at all
          (``test_messages_of_each_thread_arrive_once_and_in_order``).
        - Sending does not wait for the receiver, and no member that does not read holds up
          messages to others (``test_a_member_that_does_not_read_holds_up_nobody``).
        - Frames arrive as the receiver's own memory: writable where they were sent writable,
          valid while referenced, and never seen to change by the sender or by another receiver
          (``test_what_arrives_is_the_receivers_own``).
        - The reply to an exchange is the reply to it and no other
          (``test_each_reply_is_that_to_its_request``); its time-out is kept
          (``test_an_exchange_ends_with_its_timeout``).
        - A receiver that raises, which is a defect, makes no member deaf, and is not asked again
          (``test_a_receiver_that_raises_makes_nobody_deaf``).
        - A member that ends is reported once to each of the others, who then cannot send to it,
          and :meth:`members` names it no more (``test_a_member_that_leaves``,
          ``test_exchanges_end_with_their_member``).
        - Any use before :meth:`open` or after :meth:`close` raises ``ClosedError``
          (``test_use_before_and_after``), and :meth:`close` ends exchanges that wait
          (``test_close_ends_what_waits``). What was sent before it arrives
          (``test_messages_sent_before_the_close_arrive``).

    Features:
        - ``ordered``: messages of one thread to one member arrive in the order in which they were
          sent (``test_messages_of_each_thread_arrive_once_and_in_order``, ``test_order``).

    Attributes:
        is_local: all members are threads of one process.
    """

    is_local: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of this member."""

    @abstractmethod
    def members(self) -> list[str]:
        """The names of the members that are connected now, this one among them.

        Raises:
            ClosedError: this transport is not open.
        """

    @abstractmethod
    def open(self, receiver: Receiver) -> None:
        """Meet the other members, and pass on to *receiver* what arrives."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect, once what was sent has left, within a second; safe to call again.

        *receiver* is not called after it, except by a call that is under way.
        """

    @abstractmethod
    def send(self, to: str, frames: Frames) -> None:
        """Send a message to another member; does not wait for it to arrive.

        What cannot leave at once waits in memory: its sender limits it. The memory of frames that
        are not ``bytes`` must not change until the message has been used by its receiver.

        Raises:
            ClosedError: this transport is not open.
            PeerLostError: *to* is known to have ended, or is no other member.
            ResourceExhaustedError: there is no memory or descriptor for it; nothing was sent.
        """

    def exchange(self, to: str, frames: Frames, timeout: float | None) -> Frames | None:
        """Send a request on a way of the calling thread's own, and return the reply.

        A transport overrides this where the calling thread can do the work, which saves hand-overs
        from thread to thread. ``None``, as here: there is no such way now, and nothing was sent.
        An exchange may overtake messages, and messages it. *timeout* is in seconds, ``None`` for
        no limit.

        Raises:
            CallTimeoutError: no reply came within *timeout* seconds; a later one is dropped.
            ClosedError: this transport is not open, or is closed meanwhile.
            PeerLostError: *to* has ended, or is no other member.
            ResourceExhaustedError: there is no memory or descriptor for it, or there for the reply.
        """
        return None

    @classmethod
    @contextmanager
    def meeting(cls, config: Any, names: Sequence[str]) -> Iterator[Meeting]:
        """Prepare a place where members *names* will meet, in the process that launches them.

        What it yields reaches each member as its ``rendezvous`` and its own ``keys``.
        """
        yield Meeting("")


class TransportConfig(BackendConfig[Transport], frozen=True):
    """What every transport is told, and the RPC layer above it.

    Attributes:
        timeout: seconds that a call may take when it does not say.
        rendezvous_timeout: seconds that a member waits for the others to arrive.
        liveness_bound: seconds within which the end of a member is known to the others; one that
            is stopped, or cannot be reached, for so long is given up; an hour at the most.
        handler_threads: how many user functions a member runs at once; one that waits for
            another member does not count.
        retry_after: seconds without an answer after which a call that is ``idempotent`` is sent
            again; doubled each time, up to 30.
        max_in_flight: bytes of calls that a member may have sent to each other one and not yet
            seen answered, also of those that have expired; a caller that would exceed it waits, at
            most for the call's time-out.
    """

    interface: ClassVar[str] = "transport"
    default_backend: ClassVar[str] = "local"
    timeout: float = Field(default=60.0, gt=0)
    rendezvous_timeout: float = Field(default=120.0, gt=0)
    liveness_bound: float = Field(default=5.0, gt=0, le=3600)
    handler_threads: int = Field(default=8, ge=1)
    retry_after: float = Field(default=0.2, gt=0)
    max_in_flight: int = Field(default=256 * 2**20, ge=1)
