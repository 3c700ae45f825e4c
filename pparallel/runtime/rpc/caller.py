"""The side of a member that calls: frames out, replies in, what is lost sent again."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from typing_extensions import Buffer

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError, PparallelError
from pparallel.interfaces.serializer import Serializer
from pparallel.interfaces.transport import Frames, Transport, TransportConfig
from pparallel.runtime import dedicated, remote_errors
from pparallel.runtime.dedicated import ELSEWHERE
from pparallel.runtime.future import LeanFuture, fail, settle
from pparallel.runtime.interrupts import raise_interrupt
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import current, wire
from pparallel.runtime.rpc.batches import ENOUGH, HELD, SMALL, Batches
from pparallel.runtime.rpc.called import NotRegisteredHereError
from pparallel.runtime.rpc.directory import FIND
from pparallel.runtime.rpc.future import Callbacks, RpcFuture, Way
from pparallel.runtime.rpc.handlers import Handlers
from pparallel.runtime.rpc.quick import Quick
from pparallel.runtime.rpc.refs import RefTable, Registered, RemoteRef
from pparallel.runtime.rpc.requests import Requests
from pparallel.runtime.rpc.service import Reply
from pparallel.runtime.rpc.window import Room, Window
from pparallel.runtime.rpc.wire import Status
from pparallel.runtime.timers import Timer, Timers

if TYPE_CHECKING:
    from pparallel.runtime.memory import Arena, SharesMemory
    from pparallel.runtime.rpc.endpoint import Endpoint

RELEASE = "rpc.release"  #: tells which answers need not be kept any more

#: Bytes of ``max_in_flight`` from which on a small call that its thread waits for is not counted:
#: there are no more of them than threads.
WIDE = 2**20
FOR_EVER = 1e9  #: seconds from which on a time-out is none

LONGEST = 30.0  #: seconds up to which the time between two attempts doubles
GIVEN_UP = 2 * LONGEST  #: seconds after which an attempt is one that others have followed
SOON = 0.5  #: seconds after which a member is told again that its answer has come

#: Tells a member which requests are settled.
Release = Callable[[str, Sequence[int]], Future[Any]]

T = TypeVar("T")


class Caller:
    """Asks the services of other members, and calls functions in them."""

    refs: RefTable

    def __init__(
        self,
        transport: Transport,
        serializer: Serializer,
        member: Member,
        config: TransportConfig,
        handlers: Handlers,
    ) -> None:
        self.member = member
        self.name = member.name
        # Among threads of one process all of __main__ is there already.
        self.serializer = serializer.carrying("nothing") if transport.is_local else serializer
        serializer = self.serializer
        self.handlers = handlers
        self.owners: dict[Registered, str] = {}  # where services were found
        self._transport = transport
        # A transport that shares memory has loaded what that needs, pickle among it.
        shares = hasattr(transport, "arena")
        self._sharing = cast("SharesMemory", transport) if shares else None
        self._timeout = config.timeout
        self._window = Window(config.max_in_flight, handlers.is_running_here)
        self._is_wide = config.max_in_flight >= WIDE
        self.quick = Quick(serializer)
        self._requests = Requests(serializer, self.quick, member.names)
        self.timers = timers = Timers(f"{member.name}-timers")
        self._retries = Retries(transport, config.retry_after, self._release, timers)
        self.batches = Batches(transport, self._requests, self.quick, self._window, timers)
        self._held = self.batches.held
        handlers.timers = timers
        self.callbacks = Callbacks(cast("Endpoint", self), timers)
        self._of_calls: Way[Any] = Way(
            self._decode_call, self._waiting, self._explain, self.callbacks
        )
        self._of_services = Way(self._decode_service, self._waiting, self._explain)
        self._of_frames = Way(lambda _, frames: frames, self._waiting, self._explain)
        self._ended: BaseException | None = None
        self._failing: BaseException | None = None  # why it will soon: another member has failed

    def ask(
        self,
        to: str,
        key: str,
        body: object = None,
        buffers: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> Reply:
        """Return what the service *key* of member *to* answers."""
        frames = self._requests.service(to, key, body, buffers)
        return self._decode_service(to, self._exchange(to, frames, timeout))

    def ask_async(
        self,
        to: str,
        key: str,
        body: object = None,
        buffers: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> Future[Reply]:
        """Return a future of what the service *key* of member *to* answers."""
        frames = self._requests.service(to, key, body, buffers)
        return self._send(self._of_services, to, frames, timeout)

    def arena(self, of: str | None = None) -> Arena | None:
        """Return this member's shared memory, or that of member *of* as far as it sees it."""
        sharing = self._sharing
        return None if sharing is None else sharing.arena(self.name if of is None else of)

    def limit(self, timeout: float) -> float | None:
        """Return the time-out in seconds that -1 (the default) or 0 (none) stands for."""
        if timeout == -1:
            return self._timeout
        if not timeout >= 0:  # NaN is not either
            message = f"timeout is {timeout!r}: give seconds, 0 for no limit, -1 for the default"
            raise ValueError(message)
        return timeout if 0 < timeout < FOR_EVER else None

    def call(
        self,
        to: str,
        what: Callable[..., Any] | Registered,
        timeout: float = -1,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        idempotent: bool = False,
    ) -> Any:
        """Run *what* in member *to* and return its result."""
        if idempotent:
            return self.call_async(to, what, timeout, args, kwargs, idempotent).result()
        limit = self._timeout if timeout == -1 else self.limit(timeout)
        frames = self._requests.call(to, what, args, kwargs, limit)
        if self._is_wide and len(frames) == 2:
            data = frames[1]
            if type(data) is bytes and len(data) <= wire.SMALL:
                return self._decode_call(to, self._exchange(to, frames, limit))
        room = Room(to)
        try:
            limit = self._window.take(room, wire.size(frames), limit, is_sync=True)
            reply = self._exchange(to, frames, limit)
            self._window.give_back(room)
        except BaseException:
            self._window.give_back(room)
            raise
        return self._decode_call(to, reply)

    def call_async(
        self,
        to: str,
        what: Callable[..., Any] | Registered,
        timeout: float = -1,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        idempotent: bool = False,
    ) -> RpcFuture[Any]:
        """Run *what* in member *to* and return a future of its result."""
        limit = self._timeout if timeout == -1 else self.limit(timeout)
        if type(what) is FunctionType and self._is_wide and not idempotent:
            name = None
            if self.quick.is_small(args, kwargs, SMALL):
                name = self.quick.name(what) or self._requests.number(to, what)
            if name is not None:
                named = dict(kwargs) if kwargs else None  # it leaves later
                held: RpcFuture[Any] = RpcFuture(self._of_calls, to)
                try:
                    if self.batches.put(to, limit, (held, name, args, named)):
                        return held
                except (ClosedError, PeerLostError) as error:
                    raise self._explain(error) from None
        frames = self._requests.call(to, what, args, kwargs, limit, idempotent)
        size = wire.size(frames)
        if not isinstance(what, Registered):
            return self._send(self._of_calls, to, frames, limit, idempotent, size)
        future = RpcFuture(self._of_calls, to)
        self._send(self._of_frames, to, frames, limit, idempotent, size).add_done_callback(
            lambda reply: self._follow(future, reply, what, frames, limit, idempotent)
        )
        return future

    def remote(
        self,
        to: str,
        what: Callable[..., Any] | Registered,
        timeout: float = -1,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        idempotent: bool = False,
    ) -> RemoteRef[Any]:
        """Run *what* in member *to*, keep its result there and return a reference to it."""
        limit = self.limit(timeout)
        ref = self.refs.held(to, self.refs.new_id())
        frames = self._requests.call(to, what, args, kwargs, limit, idempotent, ref.ref_id)
        size = wire.size(frames)
        ref._confirmed = confirmed = self._send(self._of_calls, to, frames, limit, idempotent, size)
        if idempotent:
            confirmed.result()  # what is asked of the reference must not overtake a second attempt
        return ref

    def _follow(
        self,
        future: RpcFuture[Any],
        reply: Future[Frames],
        name: Registered,
        frames: Frames,
        limit: float | None,
        idempotent: bool,
    ) -> None:
        """Let *future* end as *reply* does, or ask again where the service has moved to."""
        if reply.exception() or wire.split(reply.result()).kind != Status.NOT_REGISTERED:
            future.follow(reply)
            return
        self.owners.pop(name, None)

        def found(answer: Future[Reply]) -> None:
            try:
                entry = answer.result().body
                again = reply
                if entry is not None:
                    owner = entry[0]
                    there = wire.renumbered(frames, self._requests.next_number(owner))
                    again = self._send(self._of_frames, owner, there, limit, idempotent)
                again.add_done_callback(future.follow)
            except Exception as error:  # noqa: BLE001 - goes to whoever waits
                raise_interrupt(error)
                fail(future, error)

        first = self.member.names[0]
        name_there = (name.group, "service", name.key)
        try:
            self.ask_async(first, FIND, name_there, timeout=limit).add_done_callback(found)
        except PparallelError as error:
            fail(future, error)

    # -- sending ------------------------------------------------------------------------------

    def _waiting(
        self, to: str, is_done: Callable[[], bool], timeout: float | None
    ) -> AbstractContextManager[object]:
        """Send what is held, and say that this thread waits for member *to* inside."""
        if self.handlers.here.stream is None:
            if dedicated.here.role.kind != ELSEWHERE:
                self.batches.flush_all()
                dedicated.refuse_to_wait()
            if self._held and not self.batches.flush_all(ENOUGH):
                with self._transport.awaiting(to, is_done, HELD):  # what has left is about to end
                    if is_done():
                        return nullcontext()
                self.batches.flush_all()
            return self._transport.awaiting(to, is_done, timeout)
        self.batches.flush_all()
        with ExitStack() as stack:
            stack.enter_context(self.handlers.waiting())
            stack.enter_context(self._transport.awaiting(to, is_done, timeout))
            return stack.pop_all()

    def _exchange(self, to: str, frames: Frames, timeout: float | None) -> Frames:
        if self._held:
            self.batches.flush(to)
        call = self._transport.call
        if self.batches.by_others and self.batches.may_be_overtaken(to):
            call = partial(Transport.call, self._transport)  # by the way that all requests share
        try:
            if self.handlers.here.stream is None:
                if dedicated.here.role.kind != ELSEWHERE:
                    dedicated.refuse_to_wait()
                return call(to, frames, timeout)
            with self.handlers.waiting():
                return call(to, frames, timeout)
        except (ClosedError, PeerLostError) as error:
            raise_interrupt(error)
            raise self._explain(error) from None

    def _send(
        self,
        way: Way[T],
        to: str,
        frames: Frames,
        timeout: float | None,
        idempotent: bool = False,
        size: int = 0,
    ) -> RpcFuture[T]:
        """Send a request, for which there is to be room; return the future of its reply.

        Args:
            way: of the future.
            to: a member.
            frames: the request.
            timeout: seconds.
            idempotent: whether to send it again.
            size: bytes that count in the window; 0: it does not wait for room.
        """
        if self._held:
            self.batches.flush(to)
        room = Room(to)
        future = RpcFuture(way, to, partial(self._window.give_back, room) if size else None)
        reply: Future[Any] = future
        try:
            if size:
                timeout = self._window.take(room, size, timeout)
            if idempotent:
                number = wire.split(frames).number
                self._retries.send(to, number, frames, timeout).add_done_callback(future.follow)
            else:
                self._transport.send(to, frames, timeout, reply)
        except BaseException as error:
            # The window has back what was taken. The error itself would keep the caller's frames.
            fail(future, CancelledError())
            if isinstance(error, (ClosedError, PeerLostError)):
                raise self._explain(error) from None
            raise
        return future

    def _release(self, to: str, numbers: Sequence[int]) -> Future[Reply]:
        return self.ask_async(
            to, RELEASE, (self._requests.session, list(numbers)), timeout=self._timeout
        )

    def _explain(self, error: BaseException) -> BaseException:
        """Return *error*, or what it only follows from."""
        if isinstance(error, PeerLostError) and self._failing is not None:
            return copy.copy(self._failing)  # those who heard of the failure first have left first
        return self._why(error) if isinstance(error, ClosedError) else error

    def _why(self, error: BaseException | None = None) -> BaseException:
        """Return why nothing can be asked, as an exception of the caller's own."""
        reason = self._ended or error or ClosedError("the runtime", "is not open")
        return copy.copy(reason)

    # -- replies ------------------------------------------------------------------------------

    def _decode_service(self, sender: str, frames: Frames) -> Reply:
        if frames[0] == wire.QUICK_OK:
            return Reply(self.quick.read(frames[1]), list(frames[2:]))
        message = wire.split(frames)
        body = current.loads(cast("Endpoint", self), message.body)
        if message.kind != Status.OK:
            if self._ended is not None:
                raise self._why()  # the system fails because the job ends, not the other way round
            raise self._explain(remote_errors.unpack(body, sender, self.serializer))
        return Reply(body, message.buffers)

    def _decode_call(self, sender: str, frames: Frames) -> Any:
        if frames[0] == wire.QUICK_OK:
            return self.quick.read(frames[1])
        message = wire.split(frames)
        if message.number:  # of a function that the other member keeps from now on
            self._requests.sent.kept(sender, message.number)
        if message.kind == Status.NOT_REGISTERED:
            group, key = current.loads(cast("Endpoint", self), message.body)
            raise NotRegisteredHereError(group, key, sender)
        body = current.loads(cast("Endpoint", self), message.body)
        if message.kind == Status.OK:
            return body
        with current.acting_for(cast("Endpoint", self)):
            error = remote_errors.unpack(body, sender, self.serializer)
        raise self._explain(error) if isinstance(error, PeerLostError) else error


class Retries:
    """Sends idempotent requests.

    The other member answers a request that comes again as it did the first time. It keeps its
    answer for that, and is told when it may forget it.
    """

    def __init__(
        self, transport: Transport, first: float, release: Release, timers: Timers
    ) -> None:
        self.transport, self.first, self._release = transport, first, release
        self.timers = timers

    def send(self, to: str, number: int, frames: Frames, timeout: float | None) -> Future[Frames]:
        """Send the request *number* and return a future of its answer."""
        answer: Future[Frames] = LeanFuture()
        attempts = _Attempts(self, to, frames, timeout, answer)
        answer.add_done_callback(attempts.end)
        answer.add_done_callback(partial(self._tell, to, number))
        attempts.start()
        return answer

    def _tell(self, to: str, number: int, _: object = None) -> None:
        def told(reply: Future[Any]) -> None:
            # Lost itself, perhaps; to say it twice does no harm.
            if isinstance(reply.exception(), (CallTimeoutError, PeerLostError)):
                self.timers.call_later(SOON, partial(self._tell, to, number))

        try:
            self._release(to, [number]).add_done_callback(told)
        except (ClosedError, PeerLostError):
            return  # it forgets with the end of this member, or its own


class _Attempts:
    """One request on its way, and its answer."""

    def __init__(
        self,
        retries: Retries,
        to: str,
        frames: Frames,
        timeout: float | None,
        answer: Future[Frames],
    ) -> None:
        self._retries, self._to, self._timeout = retries, to, timeout
        self._deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._delay = retries.first
        self._waiting: tuple[Frames, Future[Frames]] | None = (frames, answer)
        self._timer: Timer | None = None

    def start(self) -> None:
        """Send the request, now and again until there is an answer."""
        if self._waiting is None:
            return
        left = self._deadline - time.monotonic()
        if left <= 0:
            self._fail(CallTimeoutError(f"a request to {self._to!r}", self._timeout or 0.0))
            return
        # First, for it may raise: an attempt that nobody repeats is not made.
        self._timer = self._retries.timers.call_later(min(self._delay, left), self.start)
        self._delay = min(2 * self._delay, LONGEST)
        transport, frames = self._retries.transport, self._waiting[0]
        try:
            sent = transport.request(self._to, frames, min(left, GIVEN_UP))
        except Exception as error:  # noqa: BLE001 - goes to whoever waits
            raise_interrupt(error)
            self._failed(error)
        else:
            sent.add_done_callback(self._came)

    def end(self, _: object = None) -> None:
        """Send nothing more, and hold nothing: an attempt may wait in vain for long."""
        self._waiting = None
        if self._timer is not None:
            self._timer.cancel()

    def _came(self, sent: Future[Frames]) -> None:
        if error := sent.exception():
            self._failed(error)
        elif (waiting := self._waiting) is not None:
            settle(waiting[1], sent.result())

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, CallTimeoutError):
            return  # the timer knows whether that was the last attempt
        with suppress(PparallelError):
            if isinstance(error, PeerLostError) and self._to in self._retries.transport.members():
                return  # only the connection broke: the timer sends it again
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if (waiting := self._waiting) is not None:
            fail(waiting[1], error)
