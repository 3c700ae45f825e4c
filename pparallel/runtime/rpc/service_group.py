"""What a backend sees of a group: services that the system itself answers, and meetings."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Self, TypeVar

from typing_extensions import Buffer, override

from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    PparallelError,
    ResourceExhaustedError,
    did_you_mean,
)
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.interrupts import raise_interrupt
from pparallel.runtime.rpc import directory
from pparallel.runtime.rpc.service import Reply, Service

if TYPE_CHECKING:
    from pparallel.runtime.memory import Arena
    from pparallel.runtime.rpc.endpoint import Endpoint

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SMALL = 1 << 14  #: bytes below which memory travels in the message
_MOMENT = 1.0  #: seconds that it may take to undo what has failed
_LONG = 10.0  #: seconds after which a wait for a member whose program has ended is logged


class ServiceGroup:
    """Some members of a job, and what the system itself does among them.

    Services are scoped by the group's name. They never run on the threads that run user functions,
    so that they answer however busy those are.
    """

    def __init__(self, endpoint: Endpoint, name: str, members: Sequence[str]) -> None:
        self._endpoint = endpoint
        self._name = name
        self._members = list(members)
        self._destroyed = False
        self._interrupted: dict[str, Future[Reply]] = {}  # meetings that are waited for again

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, {self._members}, in {self._endpoint.name!r})"

    # -- who ----------------------------------------------------------------------------------

    @property
    def destroyed(self) -> bool:
        """Whether this member has left the group."""
        return self._destroyed

    def size(self) -> int:
        """Return the number of members."""
        return len(self._members)

    def is_member(self, target: object = None) -> bool:
        """Return whether *target*, by default the calling member, belongs to this group."""
        return (self._endpoint.name if target is None else _name_of(target)) in self._members

    def get_group_name(self) -> str:
        """Return the name of this group."""
        return self._name

    def get_group_members(self) -> list[str]:
        """Return the names of the members, sorted."""
        return sorted(self._members)

    def get_cur_name(self) -> str:
        """Return the name of the member that this object belongs to."""
        return self._endpoint.name

    def within(self, name: str) -> Self:
        """Return the same members under a longer name, whose services do not mix with others."""
        return type(self)(self._endpoint, f"{self._name}/{name}", self._members)

    def member_name(self, to: object) -> str:
        """Return the name of the member that *to* means: a name, a rank in the job, or an object.

        Raises:
            ValueError: it is not in this group.
            TypeError: it means none.
        """
        if self._destroyed:
            self._live()  # it raises
        if type(to) is str and to in self._members:
            return to
        if type(to) is int or (isinstance(to, int) and not isinstance(to, bool)):
            names = self._endpoint.member.names
            if not 0 <= to < len(names):
                message = f"there is no member of rank {to}; ranks go from 0 to {len(names) - 1}"
                raise ValueError(message)
            to = names[to]
            if to in self._members:
                return to
        name = _name_of(to)
        if name not in self._members:
            hint = did_you_mean(name, self._members)
            message = (
                f"{name!r} is not in group {self._name!r}; "
                f"its members: {', '.join(self._members)}.{hint}"
            )
            raise ValueError(message)
        return name

    # -- services -------------------------------------------------------------------------

    @property
    def default_timeout(self) -> float | None:
        """Seconds that the job's calls have where they say nothing of it; None: no limit."""
        return self._endpoint.limit(-1)

    @property
    def serializer(self) -> Serializer:
        """The serializer of the RPC layer."""
        return self._endpoint.serializer

    @property
    def closed(self) -> bool:
        """Whether the runtime has ended, and every call with it."""
        return self._endpoint.closed

    def serve(self, key: str, service: Service, *, heavy: bool = False) -> None:
        """Answer what others :meth:`ask` under *key*.

        *service* must not block, or has to be *heavy*: it runs on a thread of its own then.
        """
        self._endpoint.serve(self._scoped(key), service, heavy=heavy)

    def withdraw(self, key: str) -> None:
        """Answer no more; harmless if *key* was not served."""
        self._endpoint.withdraw(self._scoped(key))

    def ask(
        self,
        to: str,
        key: str,
        body: object = None,
        buffers: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> Reply:
        """Return what the service *key* of member *to* answers; ``None`` waits without limit.

        Raises:
            DirectoryError: *to* does not serve *key*.
            CallTimeoutError: it did not answer in time.
            PeerLostError: it ended.
            ClosedError: this member's runtime is not open.
            Exception: what the service raised.
        """
        return self._endpoint.ask(to, self._scoped(key), body, buffers, timeout)

    def ask_async(
        self,
        to: str,
        key: str,
        body: object = None,
        buffers: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> Future[Reply]:
        """As :meth:`ask`, but return a future."""
        return self._endpoint.ask_async(to, self._scoped(key), body, buffers, timeout)

    def memory(self, nbytes: int) -> memoryview:
        """Return writable memory for what is to be sent to others.

        Where members share memory it lies there: what is sent of it after :meth:`publish` is not
        copied. It is used again when nothing refers to it any more, here or elsewhere.
        """
        arena = self._endpoint.arena() if nbytes >= _SMALL else None
        with suppress(ResourceExhaustedError):
            if arena is not None:
                return arena.allocate(nbytes)
        return memoryview(bytearray(nbytes))

    def publish(self, memory: memoryview) -> None:
        """Promise that *memory*, which :meth:`memory` returned, is not written to any more.

        Whoever it is sent to may from now on be given the memory itself, to read: a view that is
        read-only.
        """
        arena = self._endpoint.arena()
        if arena is not None and not isinstance(memory.obj, bytearray):
            arena.publish(memory)

    def arena(self, of: str) -> Arena | None:
        """Return the shared memory of member *of*, as far as this one sees it."""
        return self._endpoint.arena(of)

    def meet(self, key: str, timeout: float | None = None, *, resumes: bool = False) -> list[str]:
        """Wait until every member that still lives has called this; return who has.

        Args:
            key: what for.
            timeout: seconds; None waits without limit.
            resumes: whether a call after one that was interrupted, as by Ctrl-C, is the same again:
                the others have met this member if they came meanwhile.

        Raises:
            CallTimeoutError: not all came within *timeout* seconds.
        """
        return self._meet(f"meet/{key}", False, timeout, resumes)

    def wait_for(self, future: Future[T], what: str, place: tuple[str, ...] | None = None) -> T:
        """Return the result of *future*, which the programs of other members bring about.

        Where the program of one has ended, this may wait without end: it is logged.

        Args:
            future: ends when the others have come so far.
            what: is waited for, for the log.
            place: where members meet for it, if they do.
        """
        began, logged = time.monotonic(), set[str]()
        while not future.done():
            try:
                return future.result(_LONG)
            except TimeoutError as error:
                raise_interrupt(error)
                if future.done():
                    break
            ended = self._ended(place)
            if not (future.done() or ended <= logged):
                logged |= ended
                logger.warning(
                    "%s has waited %.0f s for %s, which these members may never come to, as their"
                    " programs have ended and wait for the others to leave: %s. All members have"
                    " to start, take part and stop alike before they return",
                    self._endpoint.name,
                    time.monotonic() - began,
                    what,
                    ", ".join(sorted(ended)),
                )
        return future.result()

    def when_lost(self, callback: Callable[[str, str], None]) -> None:
        """Have *callback* called with the name and the end of each member that ends."""
        self._endpoint.when_lost(callback)

    def when_closed(self, callback: Callable[[BaseException], None]) -> None:
        """Have *callback* called with the reason when the runtime ends."""
        self._endpoint.when_ended(callback)

    def forget(self, callback: Callable[..., None]) -> None:
        """Undo :meth:`when_lost` and :meth:`when_closed`."""
        self._endpoint.forget(callback)

    # -- inside -------------------------------------------------------------------------------

    def _scoped(self, key: str) -> str:
        return f"{len(self._name)}/{self._name}/{key}"  # names and keys may hold any character

    def _live(self) -> None:
        if self._destroyed:
            raise ClosedError(f"group {self._name!r}", "was destroyed")

    def _ask_first(self, key: str, body: object, timeout: float = -1) -> Reply:
        endpoint = self._endpoint
        return endpoint.ask(endpoint.member.names[0], key, body, timeout=endpoint.limit(timeout))

    def _undo(self, key: str, body: object) -> None:
        """Tell the first member that what it was asked has failed here; wait a moment for it."""
        with suppress(PparallelError):
            self._ask_first(key, body, _MOMENT)

    def _meet(
        self, key: str, strict: bool, timeout: float | None, resumes: bool = False
    ) -> list[str]:
        self._live()
        endpoint = self._endpoint
        first = endpoint.member.names[0]
        ticket = endpoint.refs.new_id()
        place = (self._name, key)
        body = (place, self._members, strict, ticket)
        reply = self._interrupted.pop(key, None) or endpoint.ask_async(
            first, directory.MEET, body, timeout=timeout
        )
        try:
            met: list[str] = self.wait_for(reply, f"{key!r} of {self._name!r}", place).body
        except BaseException as error:
            if isinstance(error, CallTimeoutError) and reply.done():
                self._undo(directory.WITHDRAW, (place, ticket))
                what = f"the wait of group {self._name!r} for all its members ({key})"
                raise CallTimeoutError(what, timeout or 0.0) from None
            if not reply.done() or reply.exception() is None:  # interrupted, as by a signal
                if resumes:
                    self._interrupted[key] = reply
                elif strict:  # a barrier that was not passed, and the next call is another
                    self._undo(directory.WITHDRAW, (place, ticket))
            raise
        return met

    def _ended(self, place: tuple[str, ...] | None) -> set[str]:
        """Return the members of this group whose programs have ended, and are not at *place*."""
        try:
            ended: list[str] = self._ask_first(directory.ENDED, place, _MOMENT).body
        except PparallelError:  # the reply that is waited for fails likewise
            return set()
        return set(ended) & set(self._members)


def _name_of(target: object) -> str:
    if isinstance(target, str):
        return target
    name = getattr(target, "name", None)
    if not isinstance(name, str):
        message = f"{target!r} names no member: give a name, a rank, or an object with a name"
        raise TypeError(message)
    return name
