"""The side of a member that calls: frames out, replies in."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar, cast

from typing_extensions import Buffer

from pparallel.errors import ClosedError, PeerLostError, PparallelError, SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel.interfaces.transport import Frames, Transport, TransportConfig
from pparallel.runtime import remote_errors
from pparallel.runtime.member import Member
from pparallel.runtime.pending import fail
from pparallel.runtime.rpc import current, wire
from pparallel.runtime.rpc.directory import FIND
from pparallel.runtime.rpc.future import RpcFuture
from pparallel.runtime.rpc.handlers import Handlers
from pparallel.runtime.rpc.job import NotRegisteredHereError
from pparallel.runtime.rpc.refs import RefTable, Registered, RemoteRef
from pparallel.runtime.rpc.service import Reply
from pparallel.runtime.rpc.window import Window
from pparallel.runtime.rpc.wire import Kind, Status

if TYPE_CHECKING:
    from pparallel.runtime.rpc.endpoint import Endpoint

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
        self.serializer = serializer
        self.handlers = handlers
        self.owners: dict[Registered, str] = {}  # where services were found
        self._transport = transport
        self._timeout = config.timeout
        self._window = Window(config.max_in_flight, handlers.waiting)
        self._numbers = itertools.count()
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
        frames = self._service_frames(key, body, buffers)
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
        frames = self._service_frames(key, body, buffers)
        future = self._future(lambda reply: self._decode_service(to, reply))
        self._send(to, frames, timeout).add_done_callback(future.follow)
        return future

    def limit(self, timeout: float) -> float | None:
        """Return the time-out in seconds that -1 (the default) or 0 (none) stands for."""
        if timeout == -1:
            return self._timeout
        if timeout < 0:
            message = f"timeout is {timeout!r}: give seconds, 0 for no limit, -1 for the default"
            raise ValueError(message)
        return timeout or None

    def call(
        self,
        to: str,
        what: Callable[..., Any] | Registered,
        timeout: float = -1,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run *what* in member *to* and return its result."""
        limit = self.limit(timeout)
        frames = self._call_frames(what, args, kwargs)
        taken = self._window.take(wire.size(frames))
        try:
            reply = self._exchange(to, frames, limit)
        finally:
            self._window.give_back(taken)
        return self._decode_call(to, reply)

    def call_async(
        self,
        to: str,
        what: Callable[..., Any] | Registered,
        timeout: float = -1,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> RpcFuture[Any]:
        """Run *what* in member *to* and return a future of its result."""
        limit = self.limit(timeout)
        frames = self._call_frames(what, args, kwargs)
        future = self._future(lambda reply: self._decode_call(to, reply))
        sent = self._send_in_window(to, frames, limit)
        if isinstance(what, Registered):
            sent.add_done_callback(lambda reply: self._follow(future, reply, what, frames, limit))
        else:
            sent.add_done_callback(future.follow)
        return future

    def remote(
        self,
        to: str,
        what: Callable[..., Any] | Registered,
        timeout: float = -1,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> RemoteRef[Any]:
        """Run *what* in member *to*, keep its result there and return a reference to it."""
        limit = self.limit(timeout)
        ref = self.refs.held(to, self.refs.new_id())
        body = self._call_body(what, args, kwargs)
        # The name travels beside the body: the owner keeps a place for the value on arrival, so
        # that a reference passed on meanwhile finds it.
        name = [ref.ref_id.encode()]
        frames = wire.join(Kind.REMOTE, body, name, self._thread(), next(self._numbers))
        ref._confirmed = confirmed = self._future(lambda reply: self._decode_call(to, reply))
        self._send_in_window(to, frames, limit).add_done_callback(confirmed.follow)
        return ref

    def _follow(
        self,
        future: RpcFuture[Any],
        reply: Future[Frames],
        name: Registered,
        frames: Frames,
        limit: float | None,
    ) -> None:
        """Let *future* end as *reply* does, or ask again where the service has moved to."""
        if reply.exception() or wire.split(reply.result()).kind != Status.NOT_REGISTERED:
            future.follow(reply)
            return
        self.owners.pop(name, None)

        def found(answer: Future[Reply]) -> None:
            try:
                entry = answer.result().body
                again = reply if entry is None else self._send(entry[0], frames, limit)
                again.add_done_callback(future.follow)
            except Exception as error:  # noqa: BLE001 - handed to whoever waits for the call
                fail(future, error)

        first = self.member.names[0]
        name_there = (name.group, "service", name.key)
        try:
            self.ask_async(first, FIND, name_there, timeout=limit).add_done_callback(found)
        except PparallelError as error:
            fail(future, error)

    # -- sending ------------------------------------------------------------------------------

    def _service_frames(self, key: str, body: object, buffers: Sequence[Buffer]) -> Frames:
        frames = self._body((key, body), f"what is asked of {key!r}")
        return wire.join(Kind.SERVICE, frames, buffers, self._thread(), next(self._numbers))

    def _call_frames(
        self, what: Callable[..., Any] | Registered, args: Sequence[Any], kwargs: Any
    ) -> Frames:
        kind = Kind.REGISTERED if isinstance(what, Registered) else Kind.CALL
        body = self._call_body(what, args, kwargs)
        return wire.join(kind, body, (), self._thread(), next(self._numbers))

    def _call_body(
        self, what: Callable[..., Any] | Registered, args: Sequence[Any], kwargs: Any
    ) -> list[Buffer]:
        # A name travels as data: with a serializer that sends nothing else, it is what can be
        # called.
        if isinstance(what, Registered):
            return self._body((tuple(what), args, dict(kwargs or {})), repr(what.key))
        return self._body((what, args, dict(kwargs or {})), what)

    def _body(self, body: object, what: object) -> list[Buffer]:
        if self._ended is not None:
            raise self._why()
        try:
            return self.serializer.dumps(body)
        except SerializationError as error:
            name = getattr(what, "__qualname__", what)
            raise SerializationError(f"the call of {name}", f"{error}{self._hint(what)}") from error

    def _hint(self, what: object) -> str:
        """Return what to do if it is the function itself that cannot be sent."""
        if not callable(what):
            return ""
        try:
            self.serializer.dumps(what)
        except SerializationError:
            return "; register it where it is to run, and call it by name with registered_sync()"
        return ""

    def _exchange(self, to: str, frames: Frames, timeout: float | None) -> Frames:
        try:
            with self.handlers.waiting():
                return self._transport.call(to, frames, timeout)
        except (ClosedError, PeerLostError) as error:
            raise self._explain(error) from None

    def _send(self, to: str, frames: Frames, timeout: float | None) -> Future[Frames]:
        try:
            return self._transport.request(to, frames, timeout)
        except (ClosedError, PeerLostError) as error:
            raise self._explain(error) from None

    def _send_in_window(self, to: str, frames: Frames, timeout: float | None) -> Future[Frames]:
        taken = self._window.take(wire.size(frames))
        try:
            reply = self._send(to, frames, timeout)
        except BaseException:
            self._window.give_back(taken)
            raise
        reply.add_done_callback(lambda _: self._window.give_back(taken))
        return reply

    def _future(self, decode: Callable[[Frames], T]) -> RpcFuture[T]:
        return RpcFuture(decode, self.handlers.waiting, self._explain)

    def _explain(self, error: BaseException) -> BaseException:
        """Return *error*, or what it only follows from."""
        if isinstance(error, PeerLostError) and self._failing is not None:
            return copy.copy(self._failing)  # those who heard of the failure first have left first
        return self._why(error) if isinstance(error, ClosedError) else error

    def _why(self, error: BaseException | None = None) -> BaseException:
        """Return why nothing can be asked, as an exception of the caller's own."""
        reason = self._ended or error or ClosedError("the runtime", "is not open")
        return copy.copy(reason)

    @staticmethod
    def _thread() -> int:
        return threading.get_ident()

    # -- replies ------------------------------------------------------------------------------

    def _decode_service(self, sender: str, frames: Frames) -> Reply:
        message = wire.split(frames)
        body = self._load(message.body)
        if message.kind != Status.OK:
            if self._ended is not None:
                raise self._why()  # the system fails because the job ends, not the other way round
            raise self._explain(remote_errors.unpack(body, sender, self.serializer))
        return Reply(body, message.buffers)

    def _decode_call(self, sender: str, frames: Frames) -> Any:
        message = wire.split(frames)
        if message.kind == Status.NOT_REGISTERED:
            group, key = self._load(message.body)
            raise NotRegisteredHereError(group, key, sender)
        body = self._load(message.body)
        if message.kind == Status.OK:
            return body
        with current.acting_for(cast("Endpoint", self)):
            error = remote_errors.unpack(body, sender, self.serializer)
        raise self._explain(error) if isinstance(error, PeerLostError) else error

    def _load(self, body: Frames) -> Any:
        with current.acting_for(cast("Endpoint", self)):
            return self.serializer.loads(body)
