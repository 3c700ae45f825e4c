"""The one place where a member calls and is called."""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from functools import partial
from time import monotonic
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from typing_extensions import Buffer

from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    DirectoryError,
    PeerLostError,
    PparallelError,
    is_consequence,
)
from pparallel.interfaces.serializer import Serializer
from pparallel.interfaces.transport import Frames, Transport, TransportConfig
from pparallel.runtime.flat_views import own
from pparallel.runtime.future import LeanFuture, ended_by, fail, settle
from pparallel.runtime.member import MemberContext
from pparallel.runtime.member import context as member_context
from pparallel.runtime.rpc import context
from pparallel.runtime.rpc.codec import (
    CALL,
    DATA,
    EXCHANGE,
    FAILED,
    FLAGS,
    ID,
    IDEMPOTENT,
    KEY,
    KIND,
    LIMIT,
    NOT_REGISTERED,
    OK,
    REF_ID,
    RESULT,
    STATUS,
    SUCCESS,
    THREAD,
    VALUE,
    Call,
    Codec,
    Encoded,
    Item,
    NotRegisteredHereError,
    Registered,
)
from pparallel.runtime.rpc.directory import Directory
from pparallel.runtime.rpc.executor import Executor
from pparallel.runtime.rpc.future import RegisteredFuture, ReplyFuture, RpcFuture
from pparallel.runtime.rpc.peer import Peer
from pparallel.runtime.rpc.refs import RefTable, RemoteRef, methods_value
from pparallel.runtime.rpc.script_functions import State
from pparallel.runtime.rpc.service import Reply, Request, Service
from pparallel.runtime.state_lock import is_held_here, refuse_reentry
from pparallel.runtime.timers import Timers

if TYPE_CHECKING:
    from pparallel.runtime.memory import Arena, SharesMemory
    from pparallel.runtime.rpc.loop import Loop

logger = logging.getLogger(__name__)

T = TypeVar("T")

FAILING = "job.failing"
END = "job.end"
GRACE = 1.0  #: seconds that telling the others of a failure may take
MOST = 64  #: callbacks, and services that may block, that run at once

_NONE: Frames = ()
_LATER = (Future, CoroutineType)  #: what a called function returns whose result comes later
#: a call, when it came, and what keeps its result, if that stays here
_Job = tuple[Peer, Item, Frames, float, "Future[Any] | None"]


class Endpoint:
    """Calls and is called: functions on threads of an executor, services where they arrive.

    Everything above the transport that is the same for all transports meets here.

    Attributes:
        executor: runs the functions that others call.
        background: runs users' callbacks, and services that may block.
        owners: where registered functions were found.
        registered: functions of this member, each with the id that its name is claimed with.
        timeout: seconds that a call has by default; ``None`` is no limit wherever one is given.
    """

    def __init__(
        self,
        transport: Transport,
        serializer: Serializer,
        context: MemberContext,
        config: TransportConfig,
    ) -> None:
        self.context, self.member = context, context.member
        member = self.member
        self.name = member.name
        # Among threads of one process all of __main__ is there already.
        self.serializer = serializer.carrying("nothing") if transport.is_local else serializer
        # A transport that shares memory has loaded what that needs, pickle among it.
        shares = hasattr(transport, "arena")
        self._sharing = cast("SharesMemory", transport) if shares else None
        self._transport, self.timeout = transport, config.timeout
        self._codec = Codec(self.serializer, self.name)
        self.timers = Timers(f"{self.name}-timers")
        self.executor = Executor(
            config.handler_threads,
            self.name,
            self.timers,
            self._run,
            self._drop,
            over=self._over,
            ended=self._ran_all,
        )
        self.background = Executor(
            MOST, f"{self.name}-background", self.timers, _call, self._not_called
        )
        has_exchange = type(transport).exchange is not Transport.exchange
        self._peers = {
            name: Peer(
                name,
                transport if name != self.name else _Loopback(self),
                self._codec,
                self.timers,
                limit=config.max_in_flight,
                exchanges=has_exchange and name != self.name,
                retry_after=config.retry_after,
                is_called=self._is_called,
            )
            for name in member.names
        }
        self.registered: dict[Registered, tuple[Callable[..., Any], str]] = {}
        self.owners: dict[Registered, str] = {}
        self._services: dict[str, tuple[Service, bool]] = {}
        self._changed = threading.Condition()
        self._leaving = False
        self._ended: BaseException | None = None
        self._is_forked = False
        self._failing: BaseException | None = None  # why it will soon: another member has failed
        self._when_lost: list[Callable[[str, str], None]] = []
        self._when_ended: list[Callable[[BaseException], None]] = []
        self._lost: dict[str, str] = {}
        self._loop: Loop | None = None
        self.refs = RefTable(self)
        self._directory = Directory(self) if member.rank == 0 else None
        self.serve(FAILING, self._other_is_failing)
        self.serve(END, self._other_failed)
        context.endpoint = self

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Meet the other members."""
        self.timers.start()
        context.opened(self)
        try:
            self._transport.open(self)
        except ClosedError as error:
            raise self._closed_error(error) from None

    def leave(self) -> None:
        """Say that the ends of other members are expected from now on."""
        self._leaving = True
        for peer in self._peers.values():
            peer.flush()

    def let_others_leave(self) -> None:
        """In the first member, wait a moment for the others to leave: it may owe them an answer.

        The last that they asked was whether all are done, and they leave as soon as they know.
        """
        if self.member.rank == 0:
            others = set(self.member.names[1:])
            with self._changed:
                self._changed.wait_for(
                    lambda: self._ended is not None or others <= self._lost.keys(), GRACE
                )

    def close(self) -> None:
        """Disconnect and end the threads; safe to call again; a forked child has none of them."""
        refuse_reentry()
        if self._is_forked:
            return  # threads and connections are the parent's
        self.end(ClosedError("the runtime"))
        self._transport.close()  # a thread of its own may have begun to, and not be done with it
        context.closed(self)
        self.refs.close(logs=not is_consequence(self._ended))
        self.timers.close()
        self.background.join(GRACE)
        if not self.executor.join(GRACE):
            logger.warning("%s: a function called by another member is still running", self.name)

    def fail(self, error: BaseException) -> None:
        """Tell the others that this member failed with *error*, without waiting long."""
        # First all learn of it, then all end: whoever saw others leave before it knew why would
        # take them for lost.
        body = (self.name, f"{type(error).__name__}: {error}".removesuffix(": "))
        self._tell_all(FAILING, body)
        self._tell_all(END, body)

    def _tell_all(self, key: str, body: object) -> None:
        # The first member last: with it goes the directory, and that would be the louder news.
        told = []
        for name in reversed(self.member.names):
            if name != self.name and name not in self._lost:
                with suppress(PparallelError):  # one that has ended meanwhile need not be told
                    told.append(self.ask_async(name, key, body))
        wait(told, GRACE / 2)

    def end(self, reason: BaseException) -> None:
        """Fail whatever waits, and all that is asked later, with *reason*; the first one counts."""
        with self._changed:
            if self._ended is not None:
                return
            self._ended = reason
            self._changed.notify_all()
        for peer in self._peers.values():
            with suppress(PparallelError):
                peer.flush()  # results of this member, and what nobody waits for
        self.executor.close()
        if self._loop is not None:
            self._loop.close()
        for peer in self._peers.values():
            peer.end(lambda: self.root_cause(self._closed_error()))
        self._transport.close()
        self.background.close(runs_rest=True)
        for callback in list(self._when_ended):
            _tell(callback, reason)

    def forked(self) -> None:
        """End this copy of the endpoint, in a forked child: the parent's is not its own."""
        if self._is_forked:
            return
        why = f"belongs to process {os.getppid()}, of which this one is a fork"
        self._ended, self._is_forked = ClosedError("the runtime", why), True
        for peer in self._peers.values():
            peer.forget(self._closed_error)
        self.refs.forked()

    def check_open(self) -> None:
        """Raise why nothing can be asked any more, if that is so."""
        if self._ended is not None:
            raise self._closed_error()

    @property
    def closed(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._ended is not None

    @property
    def is_ending(self) -> bool:
        """Whether the ends of this member and its peers are expected."""
        return self._leaving or self.closed

    def when_ended(self, callback: Callable[[BaseException], None]) -> None:
        """Have *callback* called at the end with its reason; at once if it has come."""
        with self._changed:
            if self._ended is None:
                self._when_ended.append(callback)
                return
        callback(self._ended)

    def when_lost(self, callback: Callable[[str, str], None]) -> None:
        """Have *callback* called with the name and the end of each member that ends."""
        with self._changed:
            self._when_lost.append(callback)
            lost = list(self._lost.items())
        for name, reason in lost:
            callback(name, reason)

    def forget(self, callback: Callable[..., None]) -> None:
        """Call *callback* no more."""
        with self._changed:
            self._when_lost = [each for each in self._when_lost if each != callback]
            self._when_ended = [each for each in self._when_ended if each != callback]

    # -- calling ------------------------------------------------------------------------------

    def call(
        self,
        to: str,
        what: Callable[..., Any] | Registered,
        timeout: float | None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        idempotent: bool = False,
    ) -> Any:
        """Run *what* in member *to* and return its result."""
        if idempotent:
            return self.call_async(to, what, timeout, args, kwargs, idempotent).result()
        if context.here.internal:
            context.refuse_to_wait()
        peer = self._peers[to]
        flags, data, frames, state = self._call(what, args, kwargs, to)
        try:
            if self.executor.is_running_here:
                with self.executor.blocked():
                    found = peer.call(flags, data, frames, timeout, partial(RpcFuture, self, to))
            else:
                found = peer.call(flags, data, frames, timeout, partial(RpcFuture, self, to))
        except (ClosedError, PeerLostError) as error:
            raise self.root_cause(error) from None
        if isinstance(found, RpcFuture):
            if state is not None:
                self._note_when_done(found, to, what, state)
            return found.result()
        item, frames = cast("tuple[Item, Frames]", found)
        if state is not None and item[STATUS] in SUCCESS:
            self._codec.sent.note(to, what, state)
        return item[VALUE] if item[STATUS] == OK else self.read_call(to, item, frames)

    def call_async(
        self,
        to: str,
        what: Callable[..., Any] | Registered,
        timeout: float | None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        idempotent: bool = False,
        ref_id: str | None = None,
    ) -> RpcFuture[Any]:
        """Run *what* in member *to* and return a future of its result.

        With *ref_id* the result stays there under that name, and the future is of its arrival.
        """
        flags, data, frames, state = self._call(what, args, kwargs, to)
        future: RpcFuture[Any] = RpcFuture(self, to)
        if flags or idempotent:
            flags |= IDEMPOTENT if idempotent else 0
            if type(what) is Registered and ref_id is None:
                future = RegisteredFuture(self, to, what, (flags, data, frames), timeout)
        future._number = self._peers[to].call_async(future, flags, data, frames, timeout, ref_id)
        if state is not None:
            self._note_when_done(future, to, what, state)
        return future

    def has_lost(self, name: str) -> bool:
        """Return whether a member has ended."""
        return name in self._lost

    def peer(self, name: str) -> Peer:
        """Return a member, as this one sees it."""
        return self._peers[name]

    def _note_when_done(self, future: RpcFuture[Any], to: str, what: object, state: State) -> None:
        """Have a function of the script travel by name once *future* has a result."""

        def ended(done: Future[Any]) -> None:
            if future.has_result():
                self._codec.sent.note(to, what, state)

        future.when_done(ended)

    def remote(
        self,
        to: str,
        what: Callable[..., Any] | Registered,
        timeout: float | None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        idempotent: bool = False,
    ) -> RemoteRef[Any]:
        """Run *what* in member *to*, keep its result there and return a reference to it."""
        ref = self.refs.held(to, self.refs.new_id())
        ref._confirmed = confirmed = self.call_async(
            to, what, timeout, args, kwargs, idempotent, ref.ref_id
        )
        if idempotent:
            confirmed.result()  # what is asked of the reference must not overtake a second attempt
        return ref

    def ask(
        self,
        to: str,
        key: str,
        body: object = None,
        buffers: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> Reply:
        """Return what the service *key* of member *to* answers."""
        context.refuse_to_wait()
        try:
            with self.executor.blocked():
                found = self._peers[to].ask(key, body, buffers, timeout)
        except (ClosedError, PeerLostError) as error:
            raise self.root_cause(error) from None
        if found is None:
            return self.ask_async(to, key, body, buffers, timeout).result()
        return self.read_service(to, *found)

    def ask_async(
        self,
        to: str,
        key: str,
        body: object = None,
        buffers: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> Future[Reply]:
        """Return a future of what the service *key* of member *to* answers."""
        future: ReplyFuture[Reply] = ReplyFuture(self, to)
        self._peers[to].ask_async(future, key, body, buffers, timeout)
        return future

    def waiting(self, to: str) -> Any:
        """Send what is held for member *to*, and return what a wait for it is to be inside of.

        Raises:
            RuntimeError: others wait for the calling thread.
        """
        if context.here.internal or is_held_here():
            context.refuse_to_wait()
        if self._is_forked:
            raise self._closed_error()
        self._peers[to].flush()
        return self.executor.blocked()

    def arena(self, of: str | None = None) -> Arena | None:
        """Return this member's shared memory, or that of member *of* as far as it sees it."""
        sharing = self._sharing
        return None if sharing is None else sharing.arena(self.name if of is None else of)

    def read_call(self, sender: str, item: Item, frames: Frames) -> Any:
        """Return what a call has returned.

        Raises:
            BaseException: what the function raised.
        """
        if item[STATUS] == NOT_REGISTERED:
            group, key = item[VALUE]
            raise NotRegisteredHereError(group, key, sender)
        with context.acting_for(self):
            if item[STATUS] != FAILED:
                return self._codec.read_result(item, frames)[0]
            error = self._codec.error(item, frames, sender)
        raise self.root_cause(error) if isinstance(error, PeerLostError) else error

    def read_service(self, sender: str, item: Item, frames: Frames) -> Reply:
        """Return what a service has answered.

        Raises:
            BaseException: what it raised.
        """
        with context.acting_for(self):
            if item[STATUS] != FAILED:
                return Reply(*self._codec.read_result(item, frames))
            if self._ended is not None:  # which is why the service fails
                raise self._closed_error()
            error = self._codec.error(item, frames, sender)
        raise self.root_cause(error)

    def root_cause(self, error: BaseException) -> BaseException:
        """Return the error for callers: the cause of the end, where *error* follows from that."""
        if isinstance(error, PeerLostError) and self._failing is not None:
            return copy.copy(self._failing)  # those who heard of the failure first have left first
        return self._closed_error(error) if isinstance(error, ClosedError) else error

    def _closed_error(self, error: BaseException | None = None) -> BaseException:
        """Return why nothing can be asked, as an exception of the caller's own."""
        reason = self._ended or error or ClosedError("the runtime", "is not open")
        return copy.copy(reason)

    def _call(
        self,
        what: Callable[..., Any] | Registered,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        to: str,
    ) -> Call:
        if self._ended is not None:
            raise self._closed_error()
        return self._codec.call(what, args, kwargs, to)

    # -- being called -------------------------------------------------------------------------

    def serve(self, key: str, service: Service, *, heavy: bool = False) -> None:
        """Answer requests for *key* with *service*; one that may block is *heavy*."""
        if self._services.setdefault(key, (service, heavy))[0] is not service:
            raise DirectoryError(f"service {key!r} is served already by {self.name!r}")

    def withdraw(self, key: str) -> None:
        """Answer requests for *key* no more; harmless if it was not served."""
        self._services.pop(key, None)

    def on_message(self, sender: str, frames: Frames) -> None:
        """As :meth:`Receiver.on_message`."""
        here, peer = context.here, self._peers[sender]
        before, here.internal = here.internal, True
        try:
            todo = peer.received(self._codec.items(frames[0]), frames[1:])
            if type(frames) is list:
                frames.clear()  # their memory may go back as a result, once a call has been read
            jobs: list[_Job] = []
            now = monotonic()
            for item, part in todo:
                if item[KIND] != CALL:
                    self._serve(peer, item, part)
                    continue
                if jobs and jobs[-1][1][THREAD] != item[THREAD]:
                    self._submit(peer, jobs)
                    jobs = []
                # On arrival, so that references that are passed on meanwhile find it.
                kept = None if item[REF_ID] is None else self.refs.keep(item[REF_ID], sender)
                jobs.append((peer, item, part, now, kept))
            if jobs:
                self._submit(peer, jobs)
        finally:
            here.internal = before

    def on_exchange(self, sender: str, frames: Frames) -> Frames | Future[Frames]:
        """As :meth:`Receiver.on_exchange`."""
        peer, item = self._peers[sender], self._codec.items(frames[0])
        if item[KIND] != CALL:
            return self._reply(self._ask(peer, item, frames[1:]))
        peer.note_arrived(item)
        self._act()
        limit = item[LIMIT]
        try:
            if not self.executor.enter(monotonic() + limit if limit else None):
                return self._reply(self._codec.failed(item[ID], self._expired(limit)))
        except ClosedError as error:
            return Future() if self.closed else self._reply(self._codec.failed(item[ID], error))
        try:
            if peer.is_overtaken(item):  # its caller has given it up
                return self._reply(self._codec.failed(item[ID], self._expired(limit)))
            answer = self._answer(peer, item, frames[1:])
        finally:
            self.executor.leave()
        return self._reply(answer)

    def on_reset(self, name: str, error: BaseException) -> None:
        """As :meth:`Receiver.on_reset`."""
        with context.internal():
            self._peers[name].reset(error)

    def on_lost(self, name: str, reason: str) -> None:
        """As :meth:`Receiver.on_lost`."""
        with context.internal():
            self._lose(name, reason)

    def _lose(self, name: str, reason: str) -> None:
        with self._changed:
            self._lost[name] = reason
            self._changed.notify_all()
            callbacks = list(self._when_lost)
        is_over = name == self.member.names[0] and not self._leaving
        why = f"{reason}, and the job ends with its first member" if is_over else reason
        self._peers[name].end(lambda: self.root_cause(PeerLostError(name, why)))
        self._codec.received.forget(name)
        if self._directory is not None:
            self._directory.lose(name, reason)
        self.refs.lose(name)
        for callback in callbacks:
            _tell(callback, name, reason)
        if self._failing is not None:
            self.end(self._failing)
        elif is_over:
            self.end(PeerLostError(name, why))

    def _is_called(self) -> bool:
        return self.executor.is_running_here or context.here.internal

    def _submit(self, peer: Peer, jobs: list[_Job]) -> None:
        try:
            self.executor.submit((peer.name, jobs[0][1][THREAD]), jobs)
        except ClosedError as error:
            # The transport closes next and reports this member lost: that is the answer.
            if not self.closed:
                for job in jobs:
                    self._drop(job, error)

    def _act(self) -> None:
        """Have what the calling thread does from now on belong to this endpoint."""
        here = member_context.get()
        if here is None or here.endpoint is not self:
            context.act_for(self)

    def _run(self, job: _Job) -> None:
        """Run a call on a thread of the executor."""
        peer, item, frames, came, kept = job
        self._act()
        limit = item[LIMIT]
        if peer.cancelled or (limit and monotonic() >= came + limit):
            error = self._over(job)
            if error is not None:
                self._drop(job, error)
                return
        if kept is not None:
            self._keep(peer, item, frames, kept)
        else:
            peer.post(self._answer(peer, item, frames))

    def _drop(self, job: _Job, error: BaseException) -> None:
        """Have a call end with *error* instead of running it."""
        peer, item, _, _, kept = job
        if kept is not None:
            fail(kept, error)
        peer.post(self._codec.failed(item[ID], error))

    def _over(self, job: _Job) -> Exception | None:
        peer, item, _, came, _ = job
        if item[LIMIT] and monotonic() >= came + item[LIMIT]:
            return self._expired(item[LIMIT])
        return CancelledError() if peer.cancelled.pop(item[ID], 0) is None else None

    def _ran_all(self, key: Hashable) -> None:
        self._peers[cast("tuple[str, int]", key)[0]].flush()

    def _expired(self, limit: float) -> CallTimeoutError:
        return CallTimeoutError(f"a call to {self.name!r} that waited there for a thread", limit)

    def _answer(self, peer: Peer, item: Item, frames: Frames) -> Encoded | Future[Encoded]:
        """Run a call and return its result, or a future of it; never raises."""
        number = item[ID]
        try:
            function, args, kwargs = self._read(peer, item, frames)
            if type(frames) is list:
                frames.clear()  # memory to which nothing else refers may go back as the result
            if type(function) is Registered:
                return _not_registered(number, function)
            self.executor.starts()
            value = function(*args, **kwargs) if kwargs else function(*args)
            if isinstance(value, _LATER):
                source = self._source(value, item[LIMIT])
                if source is not value:
                    peer.answers_later(number, source, source.cancel)
                elif isinstance(source, LeanFuture):  # which may have callbacks of users
                    cancel = partial(self.background.submit, id(source), [source.cancel])
                    peer.answers_later(number, source, cancel)
                return self._encode_later(number, source, partial(self._codec.result, number))
            return self._codec.result(number, value)
        except BaseException as error:  # noqa: BLE001 - goes back to the caller
            return self._codec.failed(number, error)

    def _read(self, peer: Peer, item: Item, frames: Frames) -> Any:
        """Return the function of a call, or the name if none is registered, and its arguments."""
        function, args, kwargs = self._codec.read_call(item[FLAGS], item[DATA], frames, peer.name)
        if type(function) is Registered:
            offer = self.registered.get(function)
            function = function if offer is None else offer[0]
        return function, args, kwargs

    def _source(self, value: Any, limit: float) -> Future[Any]:
        """Return the future of a result that comes later, *limit* seconds at most from now."""
        if isinstance(value, Future):
            return value
        if self._loop is None:
            from pparallel.runtime.rpc.loop import Loop  # asyncio is slow to load

            with self._changed:
                self._loop = self._loop or Loop(self.name)
        return self._loop.run(value, limit)

    def _encode_later(
        self, number: int, source: Future[T], encode: Callable[[T], Encoded]
    ) -> Future[Encoded]:
        encoded: LeanFuture[Encoded] = LeanFuture()

        def ended(done: Future[T]) -> None:
            try:
                found = encode(done.result())
            except BaseException as error:  # noqa: BLE001 - goes back to the caller
                found = self._codec.failed(number, error)
            settle(encoded, found)

        source.add_done_callback(ended)
        return encoded

    def _keep(self, peer: Peer, item: Item, frames: Frames, kept: Future[Any]) -> None:
        """Run a call, tell the caller before, and keep the result."""
        number = item[ID]
        try:
            function, args, kwargs = self._read(peer, item, frames)
            if type(function) is Registered:
                fail(kept, NotRegisteredHereError(*function, self.name))
                peer.post(_not_registered(number, function))
                return
        except BaseException as error:  # noqa: BLE001 - goes back to the caller
            fail(kept, error)
            peer.post(self._codec.failed(number, error))
            return
        try:
            with methods_value(self.refs, function, args):
                peer.post(((RESULT, number, OK, None, 0, 0), _NONE))
                self.executor.starts()
                value = function(*args, **kwargs)
                if isinstance(value, _LATER):
                    self._source(value, 0.0).add_done_callback(partial(_copy_outcome, kept))
                else:
                    settle(kept, value)
        except BaseException as error:  # noqa: BLE001 - raised where the value is asked for
            fail(kept, ended_by(error))

    def _reply(self, answer: Encoded | Future[Encoded]) -> Frames | Future[Frames]:
        """Return the reply to an exchange, or a future of it."""
        if isinstance(answer, Future):
            reply: LeanFuture[Any] = LeanFuture()
            answer.add_done_callback(lambda done: settle(reply, self._reply(done.result())))
            return reply
        item, frames = answer
        return [self._codec.head(item, EXCHANGE), *frames]

    # -- services -----------------------------------------------------------------------------

    def _serve(self, peer: Peer, item: Item, frames: Frames) -> None:
        """Answer a request for a service that came as a message."""
        found = self._services.get(item[KEY])

        def ask() -> None:
            peer.post(self._ask(peer, item, frames), is_service=True)

        if found is not None and found[1]:
            self.background.submit(item[KEY], [ask])
        else:
            ask()

    def _ask(self, peer: Peer, item: Item, frames: Frames) -> Encoded | Future[Encoded]:
        """Return what a service answers, or a future of it; never raises."""
        _, number, key, body, count, _ = item
        try:
            found = self._services.get(key)
            if found is None:
                raise DirectoryError(f"service {key!r} is not served by {self.name!r}")
            if count:
                body, frames = context.loads(self, frames[:count]), frames[count:]
            reply = found[0](Request(peer.name, body, list(frames)))
            if isinstance(reply, Reply):
                return self._codec.result(number, *reply)
        except BaseException as error:  # noqa: BLE001 - goes to whoever waits
            return self._codec.failed(number, error)
        return self._encode_later(number, reply, lambda it: self._codec.result(number, *it))

    def _not_called(self, job: Callable[[], object], error: Exception) -> None:
        logger.error("%s: a callback or service is not called: %s", self.name, error)

    # -- ends ---------------------------------------------------------------------------------

    def _other_is_failing(self, request: Request) -> Reply:
        name, message = request.body
        why = f"is ending because member {name!r} failed: {message}"
        self._failing = ClosedError("the job", why, consequence=True)
        return Reply()

    def _other_failed(self, request: Request) -> Reply:
        if self._failing is None:  # it could not be told before
            self._other_is_failing(request)
        assert self._failing is not None
        self.end(self._failing)
        return Reply()


class _Loopback:
    """Carries what a member sends to itself."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def send(self, to: str, frames: Frames) -> None:
        """As :meth:`Transport.send`."""
        self._endpoint.on_message(to, own(frames))

    def exchange(self, to: str, frames: Frames, timeout: float | None) -> None:
        """As :meth:`Transport.exchange`."""


def _not_registered(number: int, name: Registered) -> Encoded:
    return (RESULT, number, NOT_REGISTERED, tuple(name), 0, 0), _NONE


def _copy_outcome(to: Future[Any], done: Future[Any]) -> None:
    try:
        settle(to, done.result())
    except BaseException as error:  # noqa: BLE001 - raised where the value is asked for
        fail(to, ended_by(error))


def _call(job: Callable[[], object]) -> None:
    job()


def _tell(callback: Callable[..., None], *news: object) -> None:
    """Call *callback*; whatever it raises, the others are to be called too."""
    try:
        callback(*news)
    except Exception:
        logger.exception("What was to be called when a member has ended failed")
