"""Transports of requests, the first version of the interface: they move to messages one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, ClassVar

from pparallel.interfaces.transport import Frames, Meeting, Transport

Handler = Callable[[str, Frames], "Frames | Future[Frames]"]  #: (sender, frames) -> reply
Lost = Callable[[str, str], None]  #: (name, what is known of its end)

_NOTHING: AbstractContextManager[object] = nullcontext()


class RequestTransport(ABC):
    """Carries requests between named members, and their replies back.

    It knows nothing of functions, objects, names or groups: those stand above it, in
    ``pparallel.runtime.rpc``, and are the same for every transport.

    Attributes:
        is_local: all members are threads of one process.
        has_lanes: a call that is waited for has a way and a thread of its own.
    """

    is_local: ClassVar[bool] = False
    has_lanes: ClassVar[bool] = False
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


Transport.register(RequestTransport)  # type: ignore[type-abstract] # while some have not moved
