"""Transport: carry requests between named members."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import Field, SecretStr
from typing_extensions import Buffer

from pparallel.config import BackendConfig

Frames = Sequence[Buffer]
Handler = Callable[[str, Frames], "Frames | Future[Frames]"]  #: (sender, frames) -> reply
Lost = Callable[[str, str], None]  #: (name, what is known of its end)

_NOTHING: AbstractContextManager[object] = nullcontext()


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


class Transport(ABC):
    """Carries requests between named members, and their replies back.

    It knows nothing of functions, objects, names or groups: those stand above it, in
    ``pparallel.runtime.rpc``, and are the same for every transport.

    Guarantees:
        - A message arrives with the frames it was sent with, empty ones too
          (``TransportSuite.test_frames_arrive_as_sent``), and huge ones
          (``test_huge_frames_arrive_as_sent``), and many (``test_many_frames_arrive``).
        - Each request is handled at most once
          (``TransportSuite.test_each_request_is_handled_once``), and its reply is the reply to it
          and no other (``test_each_reply_is_that_to_its_request``).
        - Neither a sender nor the requests behind wait while the reply to a request is not there
          (``TransportSuite.test_a_request_does_not_wait_for_its_reply``,
          ``test_calls_in_a_circle``, ``test_circles_do_not_deadlock``).
        - Frames arrive as the receiver's own memory: writable where they were sent writable,
          valid while referenced, and never seen to change by the sender or by another receiver
          (``TransportSuite.test_what_arrives_is_the_receivers_own``; for tensors, with every
          serializer, ``test_tensors_are_the_receivers_own``).
        - What the handler raises fails the request with ``RemoteError``
          (``TransportSuite.test_a_handler_that_fails``).
        - A time-out is honoured (``TransportSuite.test_timeout``), and a reply that comes later is
          dropped (``test_a_late_reply_is_dropped``). It is kept under signals
          (``test_a_timeout_is_kept_under_signals``), under back-pressure
          (``test_a_timeout_is_kept_under_back_pressure``) and in queues
          (``test_a_timeout_is_kept_in_queues``).
        - A member goes on after an error, whatever raised it
          (``TransportSuite.test_nobody_is_deaf_after_an_error``,
          ``test_nobody_is_deaf_after_a_callback``, ``test_a_callback_that_exits``).
        - A member that ends is reported once to each of the others, every request that waits for
          it fails with ``PeerLostError``, and :meth:`members` names it no more
          (``TransportSuite.test_a_member_that_leaves``).
        - :meth:`close` fails every request that still waits with ``ClosedError``
          (``TransportSuite.test_close_ends_what_waits``, ``test_nothing_waits_after_the_end``),
          and so does any use before :meth:`open` or after it (``test_use_before_and_after``).
        - Any thread may send (``TransportSuite.test_many_threads``).

    Features:
        - ``ordered``: requests from one thread to one member reach its handler in the order sent
          (``TransportSuite.test_order``).

    Attributes:
        is_local: all members are threads of one process.
    """

    is_local: ClassVar[bool] = False
    _on_lost: Lost | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of this member."""

    @abstractmethod
    def members(self) -> list[str]:
        """The names of the members that are connected now, this one among them."""

    @abstractmethod
    def open(self, handler: Handler) -> None:
        """Connect, and pass each request that arrives to *handler*.

        The handler returns the reply's frames, or a future of them; it never blocks. An exception
        of the handler is a defect: the request fails with it, as text, in a ``RemoteError``.
        """

    @abstractmethod
    def close(self) -> None:
        """Disconnect; safe to call again."""

    @abstractmethod
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        """Send *frames* to member *to* and return a future of its reply.

        The frames' memory must stay unchanged until the future is done. ``timeout`` is in seconds,
        ``None`` for no limit.

        Raises:
            ClosedError: this transport is not open.
            PeerLostError: *to* is known to have ended, or is no member.

        The future fails with ``CallTimeoutError``, ``PeerLostError`` or ``ClosedError``.
        """

    def call(self, to: str, frames: Frames, timeout: float | None = None) -> Frames:
        """Send *frames* to member *to* and return its reply.

        A transport overrides this where the caller's own thread can do the work.
        """
        return self.request(to, frames, timeout).result()

    def send(self, to: str, frames: Frames, timeout: float | None, future: Future[Frames]) -> None:
        """As :meth:`request`, but complete *future*, which the caller has made.

        A transport overrides this where that saves it a future of its own.
        """

        def ended(reply: Future[Frames]) -> None:
            with suppress(InvalidStateError):  # it has ended meanwhile
                if error := reply.exception():
                    future.set_exception(error)
                else:
                    future.set_result(reply.result())

        self.request(to, frames, timeout).add_done_callback(ended)

    def awaiting(
        self, to: str, is_done: Callable[[], bool], timeout: float | None
    ) -> AbstractContextManager[object]:
        """Return what is entered while a thread waits for a reply of member *to*.

        A transport overrides this where that thread may receive meanwhile, until *is_done*, and so
        spares others the work.
        """
        return _NOTHING

    def when_lost(self, callback: Lost) -> None:
        """Have *callback* called, once for each member that ends; set before :meth:`open`."""
        self._on_lost = callback

    def lost(self, name: str, reason: str) -> None:
        """Report that member *name* has ended: called by the backend, once for each member."""
        if self._on_lost is not None:
            self._on_lost(name, reason)

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
            is stopped, or cannot be reached, for so long is given up.
        handler_threads: how many user functions a member runs at once; one that waits for
            another member does not count.
        retry_after: seconds without an answer after which a call that is ``idempotent`` is sent
            again; doubled each time, up to 30.
        max_in_flight: bytes of calls that a member may have sent to each other one and not yet
            seen answered; a caller that would exceed it waits, at most for the call's time-out.
    """

    interface: ClassVar[str] = "transport"
    default_backend: ClassVar[str] = "local"
    timeout: float = Field(default=60.0, gt=0)
    rendezvous_timeout: float = Field(default=120.0, gt=0)
    liveness_bound: float = Field(default=5.0, gt=0)
    handler_threads: int = Field(default=8, ge=1)
    retry_after: float = Field(default=0.2, gt=0)
    max_in_flight: int = Field(default=256 * 2**20, ge=1)
