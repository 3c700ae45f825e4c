"""The one place where a member calls and is called."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from pparallel.errors import (
    ClosedError,
    DirectoryError,
    PeerLostError,
    PparallelError,
    SerializationError,
)
from pparallel.interfaces.serializer import Serializer
from pparallel.interfaces.transport import Frames, Transport, TransportConfig
from pparallel.runtime import dedicated, remote_errors
from pparallel.runtime.dedicated import ELSEWHERE, LEADING
from pparallel.runtime.lean_future import LeanFuture
from pparallel.runtime.member import Member
from pparallel.runtime.pending import settle
from pparallel.runtime.rpc import current, wire
from pparallel.runtime.rpc.arrivals import Arrivals
from pparallel.runtime.rpc.caller import RELEASE, Caller
from pparallel.runtime.rpc.closures import KeptFunctions
from pparallel.runtime.rpc.directory import Directory
from pparallel.runtime.rpc.handlers import Handlers
from pparallel.runtime.rpc.job import Job
from pparallel.runtime.rpc.refs import RefTable, Registered
from pparallel.runtime.rpc.service import Reply, Request, Service
from pparallel.runtime.rpc.wire import IDEMPOTENT, QUICK_CALL, Kind, Status

logger = logging.getLogger(__name__)

FAILING = "job.failing"
END = "job.end"
GRACE = 1.0  #: seconds that telling the others of a failure may take

T = TypeVar("T")


class Endpoint(Caller):
    """Calls and is called: functions on a pool of threads, services where they arrive.

    Everything above the transport that is the same for all transports meets here. Services run on
    the thread that received the request and never block; user functions run on
    :class:`~pparallel.runtime.rpc.handlers.Handlers`.
    """

    def __init__(
        self, transport: Transport, serializer: Serializer, member: Member, config: TransportConfig
    ) -> None:
        handlers = Handlers(config.handler_threads, member.name)
        super().__init__(transport, serializer, member, config, handlers)
        self._services: dict[str, Service] = {}
        self.registered: dict[Registered, Callable[..., Any]] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._leaving = False
        self._when_lost: list[Callable[[str, str], None]] = []
        self._when_ended: list[Callable[[BaseException], None]] = []
        self._lost: dict[str, str] = {}
        self._arrivals: dict[tuple[str, int], Arrivals] = {}  # by sender and its session
        self.functions = KeptFunctions(serializer)
        self.refs = RefTable(self)
        self._directory = Directory(self) if member.rank == 0 else None
        self.serve(FAILING, self._other_is_failing)
        self.serve(END, self._other_failed)
        self.serve(RELEASE, self._forget_answers)

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Meet the other members."""
        self._transport.when_lost(self._peer_lost)
        try:
            self._transport.open(self._handle)
        except ClosedError as error:
            raise self._why(error) from None
        current.opened(self)

    def leave(self) -> None:
        """Say that the ends of other members are expected from now on."""
        self._leaving = True

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
        """Disconnect and end the threads; safe to call again."""
        self.end(ClosedError("the runtime"))
        current.closed(self)
        self.refs.close()
        if not self.handlers.join(GRACE):
            logger.warning("%s: a function called by another member is still running", self.name)

    def fail(self, error: BaseException) -> None:
        """Tell the others that this member failed with *error*, without waiting long."""
        # First all learn of it, then all end: whoever saw others leave before it knew why would
        # take them for lost.
        body = (self.name, f"{type(error).__name__}: {error}")
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
        with self._lock:
            if self._ended is not None:
                return
            self._ended = reason
            self._changed.notify_all()
        self._requests.close(self._why)
        self._window.close()
        self.handlers.close()
        self._transport.close()
        self._retries.close()
        for callback in self._when_ended:
            callback(reason)

    @property
    def closed(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._ended is not None

    def when_ended(self, callback: Callable[[BaseException], None]) -> None:
        """Have *callback* called at the end with its reason; at once if it has come."""
        with self._lock:
            if self._ended is None:
                self._when_ended.append(callback)
                return
        callback(self._ended)

    def when_lost(self, callback: Callable[[str, str], None]) -> None:
        """Have *callback* called with the name and the end of each member that ends."""
        with self._lock:
            self._when_lost.append(callback)
            lost = list(self._lost.items())
        for name, reason in lost:
            callback(name, reason)

    def forget(self, callback: Callable[..., None]) -> None:
        """Call *callback* no more."""
        with self._lock:
            self._when_lost = [each for each in self._when_lost if each != callback]
            self._when_ended = [each for each in self._when_ended if each != callback]

    # -- services -----------------------------------------------------------------------------

    def serve(self, key: str, service: Service) -> None:
        """Answer requests for *key* with *service*."""
        with self._lock:
            if key in self._services:
                raise DirectoryError(f"service {key!r} is served already by {self.name!r}")
            self._services[key] = service

    def withdraw(self, key: str) -> None:
        """Answer requests for *key* no more; harmless if it was not served."""
        with self._lock:
            self._services.pop(key, None)

    @property
    def answers_kept(self) -> int:
        """How many answers are kept for members that may ask again."""
        return sum(each.answers for each in list(self._arrivals.values()))

    # -- being called -------------------------------------------------------------------------

    def _handle(self, sender: str, frames: Frames) -> Frames | Future[Frames]:
        """Answer one request; called by the transport, on any thread, and never blocks."""
        where = dedicated.here.role.kind
        if where and frames and bytes(frames[0][:2]) == QUICK_CALL:  # type: ignore[index] # a buffer of bytes
            return self._handle_quick_call(sender, frames, where == LEADING)
        try:
            message = wire.split(frames)
        except SerializationError as error:
            return self.failed(error)
        key = sender, message.session
        arrivals = self._arrivals.get(key) or self._arrivals.setdefault(key, Arrivals())
        number, idempotent = message.number, message.flags & IDEMPOTENT
        if not arrivals.take(number, idempotent):
            return arrivals.answer(number)
        answer = self._answer(sender, message)
        if idempotent:
            arrivals.keep(number, answer)
        return answer

    def _handle_quick_call(
        self, sender: str, frames: Frames, quickly: bool
    ) -> Frames | Future[Frames]:
        """Answer what is asked most, in a thread in which it may run.

        It does what the other two methods do, without what they need for all the rest: where two
        processes take turns on a core, each function costs a multiple of what it does in a loop.
        """
        _, _, _, session, thread, number = wire.fields(frames[0])
        arrivals = self._arrivals.get((sender, session))
        if arrivals is None:
            arrivals = self._arrivals.setdefault((sender, session), Arrivals())
        if not arrivals.take(number):
            return arrivals.answer(number)
        try:
            if not self.handlers.enter((sender, thread), quickly=quickly):
                return self._answer(sender, wire.split(frames))
        except ClosedError as error:
            return Future() if self.closed else self.failed(error)
        if current.acting.get() is not self:
            current.act_for(self)
        try:
            return self.quick.run(frames) or Job(self, sender, wire.split(frames)).answer()
        except BaseException as error:  # noqa: BLE001 - goes back to the caller
            return self.failed(error)
        finally:
            self.handlers.leave()

    def _answer(self, sender: str, message: wire.Message) -> Frames | Future[Frames]:
        try:
            if message.kind == Kind.SERVICE:
                return self._run_service(sender, message)
            key = sender, message.thread
            where = dedicated.kind() if message.kind != Kind.REMOTE else ELSEWHERE
            if where and self.handlers.enter(key, quickly=where == LEADING):
                return self._run_here(Job(self, sender, message))
            reply: Future[Frames] = LeanFuture()
            kept = None
            if message.kind == Kind.REMOTE:
                kept = self.refs.keep(bytes(message.buffers[0]).decode(), sender)
            job = partial(Job(self, sender, message, kept).run, reply)
            self.handlers.submit(key, job)
        except ClosedError as error:
            # The transport closes next and reports this member lost: that is the answer.
            return Future() if self.closed else self.failed(error)
        except Exception as error:  # noqa: BLE001 - goes back to whoever asked
            return self.failed(error)
        return reply

    def _run_here(self, job: Job) -> Frames:
        """Run a function in this thread, which the transport lets it do."""
        current.act_for(self)
        try:
            return job.answer()
        finally:
            self.handlers.leave()

    def _run_service(self, sender: str, message: wire.Message) -> Frames | Future[Frames]:
        key, body = self._load(message.body)
        service = self._services.get(key)
        if service is None:
            raise DirectoryError(f"service {key!r} is not served by {self.name!r}")
        reply = service(Request(sender, body, message.buffers))
        if isinstance(reply, Reply):
            return self._replied(reply)
        deferred: Future[Frames] = Future()

        def ended(source: Future[Reply]) -> None:
            error = source.exception()
            frames = self._replied(source.result()) if error is None else self.failed(error)
            settle(deferred, frames)

        reply.add_done_callback(ended)
        return deferred

    def _replied(self, reply: Reply) -> Frames:
        try:
            return wire.join(Status.OK, self.serializer.dumps(reply.body), reply.buffers)
        except SerializationError as error:
            return self.failed(error)

    def failed(self, error: BaseException) -> Frames:
        """Return the reply that says that a request failed with *error*."""
        envelope = tuple(remote_errors.pack(error, self.serializer))
        return wire.join(Status.FAILED, self.serializer.dumps(envelope))

    def _forget_answers(self, request: Request) -> Reply:
        session, numbers = request.body
        if arrivals := self._arrivals.get((request.sender, session)):
            arrivals.release(numbers)
        return Reply()

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

    def _peer_lost(self, name: str, reason: str) -> None:
        with self._lock:
            self._lost[name] = reason
            self._changed.notify_all()
            callbacks = list(self._when_lost)
            ended = [each for key, each in list(self._arrivals.items()) if key[0] == name]
            self.owners = {key: owner for key, owner in self.owners.items() if owner != name}
        if self._directory is not None:
            self._directory.lose(name, reason)
        self.refs.lose(name)
        self.functions.forget(name)
        for arrivals in ended:
            arrivals.end()
        for callback in callbacks:
            callback(name, reason)
        if self._failing is not None:
            self.end(self._failing)
        elif name == self.member.names[0] and not self._leaving:
            self.end(PeerLostError(name, f"{reason}, and the job ends with its first member"))
