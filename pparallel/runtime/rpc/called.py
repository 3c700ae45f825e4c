"""The side of a member that is called: requests in, answers out."""

from __future__ import annotations

import logging
import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    DirectoryError,
    ResourceExhaustedError,
    SerializationError,
)
from pparallel.interfaces.serializer import Serializer
from pparallel.interfaces.transport import Frames
from pparallel.runtime import dedicated, remote_errors
from pparallel.runtime.dedicated import ELSEWHERE, LEADING
from pparallel.runtime.delivery import own
from pparallel.runtime.future import LeanFuture, fail, settle
from pparallel.runtime.interrupts import raise_interrupt
from pparallel.runtime.rpc import current, wire
from pparallel.runtime.rpc.batches import LATE, BatchRun, Key
from pparallel.runtime.rpc.closures import KeptFunctions
from pparallel.runtime.rpc.handlers import Handlers
from pparallel.runtime.rpc.quick import Name, Quick
from pparallel.runtime.rpc.refs import RefTable, Registered, methods_value
from pparallel.runtime.rpc.service import Reply, Request, Service
from pparallel.runtime.rpc.wire import CALLS, IDEMPOTENT, QUICK, Kind, Status
from pparallel.runtime.timers import Timers
from pparallel.runtime.user_code import ended_by, run

if TYPE_CHECKING:
    from pparallel.runtime.rpc.endpoint import Endpoint

logger = logging.getLogger(__name__)

MANY_LATE = 64  #: batches after which it is looked which of them nobody will ask for any more
GIVEN_UP = 60.0  #: seconds after the end of their last call
MOST_SESSIONS = 8  #: of one member, of which the requests are told apart
UNSENDABLE = "the error of a call could not be sent, as for want of memory; the log of {} has it"


class Called:
    """Runs the functions that other members call, and the services that they ask.

    Services run on the thread that received the request and never block; user functions run on
    :class:`~pparallel.runtime.rpc.handlers.Handlers`, or in that thread where they may.
    """

    name: str
    serializer: Serializer
    handlers: Handlers
    quick: Quick
    refs: RefTable
    timers: Timers

    def __init__(self) -> None:
        self.registered: dict[Registered, Callable[..., Any]] = {}
        self.functions = KeptFunctions(self.serializer)
        self.late_batches: dict[Key, BatchRun] = {}  # whose senders may ask for the rest
        self._arrivals: dict[tuple[str, int], Arrivals] = {}  # by sender and its session
        self._services: dict[str, Service] = {}
        self._serving = threading.RLock()
        self._me = cast("Endpoint", self)  # there is no other kind
        error = remote_errors.Envelope("RuntimeError", UNSENDABLE.format(self.name), "", None, None)
        self._unsendable = wire.join(Status.FAILED, self.serializer.dumps(tuple(error)))

    def serve(self, key: str, service: Service) -> None:
        """Answer requests for *key* with *service*."""
        if self._services.setdefault(key, service) is not service:
            raise DirectoryError(f"service {key!r} is served already by {self.name!r}")

    def withdraw(self, key: str) -> None:
        """Answer requests for *key* no more; harmless if it was not served."""
        self._services.pop(key, None)

    # -- being called -------------------------------------------------------------------------

    def _handle(self, sender: str, frames: Frames) -> Frames | Future[Frames]:
        """Answer one request; called by the transport, on any thread, and never blocks."""
        where = dedicated.here.role.kind
        if where > ELSEWHERE and frames:
            head: Any = frames[0]
            if len(head) > 1 and head[0] in CALLS and not head[1] & IDEMPOTENT:
                return self._handle_here(sender, frames, where == LEADING)
        try:
            message = wire.split(frames)
        except SerializationError as error:
            return self.failed(error)
        arrivals = self._arrivals_of(sender, message.session)
        number, idempotent = message.number, message.flags & IDEMPOTENT
        if not arrivals.take(number, idempotent):
            return arrivals.answer(number)
        answer = self._answer(sender, message)
        if idempotent:
            arrivals.keep(number, answer)
        return answer

    def _handle_here(self, sender: str, frames: Frames, quickly: bool) -> Frames | Future[Frames]:
        """Answer a call in this thread, which the transport lets do it.

        It does what the other two methods do, without what they need for all the rest: where two
        processes take turns on a core, each function costs a multiple of what it does in a loop.
        """
        kind, flags, _, session, thread, number, _ = wire.fields(frames[0])
        arrivals = self._arrivals.get((sender, session))
        if arrivals is None:
            arrivals = self._arrivals_of(sender, session)
        if not arrivals.take(number):
            return arrivals.answer(number)
        try:
            if not self.handlers.enter((sender, thread), quickly=quickly):
                return self._answer(sender, wire.split(frames))
        except ClosedError as error:
            return Future() if self._me.closed else self.failed(error)
        if current.acting.get() is not self:
            current.act_for(self._me)
        try:
            reply = self.quick.run(frames) if flags and kind == Kind.CALL else None
            return reply or Job(self._me, sender, wire.split(frames)).answer()
        except BaseException as error:  # noqa: BLE001 - goes back to the caller
            return self.failed(error)
        finally:
            self.handlers.leave()

    def _answer(self, sender: str, message: wire.Message) -> Frames | Future[Frames]:
        try:
            if message.kind == Kind.SERVICE:
                return self._run_service(sender, message)
            if message.kind in (Kind.BATCH, Kind.REST):
                return self._run_batch(sender, message)
            reply: Future[Frames] = LeanFuture()
            kept = None
            if message.kind == Kind.REMOTE:
                kept = self.refs.keep(bytes(message.buffers[0]).decode(), sender)
            job = partial(Job(self._me, sender, message, kept).run, reply)
            self.handlers.submit((sender, message.thread), job)
        except ClosedError as error:
            # The transport closes next and reports this member lost: that is the answer.
            return Future() if self._me.closed else self.failed(error)
        except Exception as error:  # noqa: BLE001 - goes to whoever waits
            raise_interrupt(error)
            return self.failed(error)
        return reply

    def _run_batch(self, sender: str, message: wire.Message) -> Frames | Future[Frames]:
        """Run calls that came together, or return more of their results."""
        data = self.quick.read(message.body[0])
        if message.kind == Kind.REST:
            late = self.late_batches.get((sender, message.session, data))
            return late.reply() if late is not None else Future()
        batch = BatchRun(self._me, (sender, message.session, message.number), data, message.limit)
        reply = batch.reply()
        try:
            batch.timer = self.timers.call_later(LATE, batch.tick)
        except ResourceExhaustedError as error:
            logger.warning("%s replies to calls only when all have ended: %s", self.name, error)
        key = sender, message.thread
        role = dedicated.here.role
        if role.kind == LEADING and role.do is not None:
            batch.stream = self.handlers.reserve(key, batch.jobs(), role.do)
        if batch.stream is None:
            self.handlers.submit(key, *batch.jobs())
        return reply

    def _run_service(self, sender: str, message: wire.Message) -> Frames | Future[Frames]:
        quickly = bool(message.flags & QUICK)
        if quickly:
            key, body = self.quick.read(message.body[0])
        else:
            key, body = run(current.loads, (self._me, message.body))  # hooks of users may call
        service = self._services.get(key)
        if service is None:
            raise DirectoryError(f"service {key!r} is not served by {self.name!r}")
        reply = service(Request(sender, body, message.buffers))
        if isinstance(reply, Reply):
            return self._replied(reply, quickly)
        deferred: Future[Frames] = LeanFuture()

        def ended(source: Future[Reply]) -> None:
            error = source.exception()
            frames = self.failed(error) if error else self._replied(source.result(), quickly)
            settle(deferred, frames)

        reply.add_done_callback(ended)
        return deferred

    def _replied(self, reply: Reply, quickly: bool) -> Frames:
        try:
            if quickly and (data := self.quick.value(reply.body)) is not None:
                return [wire.QUICK_OK, data, *reply.buffers]
            frames: Frames = run(wire.result, (self.serializer, reply.body, reply.buffers))
            return frames
        except Exception as error:  # noqa: BLE001 - what cannot be encoded goes back as an error
            raise_interrupt(error)
            return self.failed(error)

    def failed(self, error: BaseException) -> Frames:
        """Return the reply that says that a request failed with *error*."""
        try:
            envelope = tuple(remote_errors.pack(error, self.serializer))
            return wire.join(Status.FAILED, self.serializer.dumps(envelope))
        except Exception as unsendable:
            raise_interrupt(unsendable)
            logger.exception("%s cannot send the error of a call: %r", self.name, error)
            return self._unsendable

    def _arrivals_of(self, sender: str, session: int) -> Arrivals:
        found = self._arrivals.get((sender, session))
        if found is None:
            with self._serving:  # a member has one session: others are made up, or long over
                others = [key for key in self._arrivals if key[0] == sender]
                for key in others[: len(others) - MOST_SESSIONS + 1]:
                    del self._arrivals[key]
                found = self._arrivals.setdefault((sender, session), Arrivals())
        return found

    def _forget_answers(self, request: Request) -> Reply:
        session, numbers = request.body
        if arrivals := self._arrivals.get((request.sender, session)):
            arrivals.release(numbers)
        return Reply()

    def keep_late(self, key: Key, batch: BatchRun) -> None:
        """Keep a batch until its sender has asked for all results, as it does at once.

        One whose calls have timed out meanwhile does not: what was over long ago is forgotten.
        """
        self.late_batches[key] = batch
        if len(self.late_batches) % MANY_LATE == 0:
            before = time.monotonic() - GIVEN_UP
            for each, kept in list(self.late_batches.items()):
                if kept.over < before:
                    self.late_batches.pop(each, None)

    def forget_sender(self, name: str) -> None:
        """Forget what was asked by a member that has ended."""
        for (sender, _), arrivals in list(self._arrivals.items()):
            if sender == name:
                arrivals.end()
        for key in list(self.late_batches):
            if key[0] == name:
                self.late_batches.pop(key, None)
        self.functions.forget(name)


class Arrivals:
    """The requests of one session of one sender, which numbers them from 0 on.

    It remembers the highest number, the ranges of numbers below it that have not arrived, and the
    replies to requests that may come again, until the sender says that it has them. So memory is
    bounded by what is in flight, or was lost, and not by what was asked; a sender that leaves out
    numbers on purpose costs no more than the requests that it sends.

    Attributes:
        answers: the replies that are kept, or what will be these, by number.
    """

    #: Ranges of missing numbers that are remembered. More than these cannot be on their way at
    #: once; a request below them that arrives after all is not run.
    MOST_GAPS = 2**14

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._highest: float = -1
        self._gaps: list[tuple[int, int]] = []  # first and last of each range, ascending
        self.answers: dict[int, Future[Frames]] = {}

    def take(self, number: int, idempotent: int = 0) -> bool:
        """Return whether the request *number* is to be run: it has not arrived before.

        The reply to an idempotent one is to be handed to :meth:`keep`.
        """
        if number == self._highest + 1 and not idempotent:  # as most are
            self._highest = number  # without a call since it was compared
            return True
        with self._lock:
            if not (self._reach(number) or self._fill(number)):
                return False
            if idempotent:
                self.answers[number] = LeanFuture()
            return True

    def keep(self, number: int, answer: Frames | Future[Frames]) -> None:
        """Remember the answer to a request, or what it will be."""
        if isinstance(answer, Future):
            answer.add_done_callback(lambda done: self._put(number, done.result()))
        else:
            self._put(number, answer)

    def answer(self, number: int) -> Future[Frames]:
        """Return the answer to a request that has arrived before.

        A future that is never done stands for one that is not kept: it was given when the request
        came first, and must not be overtaken by anything else.
        """
        with self._lock:
            return self.answers.get(number) or Future()

    def release(self, numbers: Iterable[int]) -> None:
        """Forget the answers to requests that the sender no longer waits for.

        Those that have not arrived are not run any more.
        """
        with self._lock:
            for number in numbers:
                if not self._reach(number):
                    self._fill(number)
                self.answers.pop(number, None)

    def end(self) -> None:
        """Forget everything, and take nothing more: the sender has ended."""
        with self._lock:
            self._highest = float("inf")
            self._gaps.clear()
            self.answers.clear()

    def _reach(self, number: int) -> bool:
        """Make *number* the highest, if it is; others may take the next one meanwhile."""
        highest = self._highest
        if number <= highest:
            return False
        self._highest = number  # without a call since it was compared
        if number > highest + 1:
            self._gaps.append((int(highest) + 1, number - 1))
            if len(self._gaps) > self.MOST_GAPS:
                del self._gaps[: self.MOST_GAPS // 2]
        return True

    def _fill(self, number: int) -> bool:
        """Take *number* out of its gap; return whether it was missing."""
        at = bisect_right(self._gaps, number, key=itemgetter(0)) - 1
        if at < 0 or self._gaps[at][1] < number:
            return False
        first, last = self._gaps[at]
        rest = [(first, number - 1), (number + 1, last)]
        self._gaps[at : at + 1] = [each for each in rest if each[0] <= each[1]]
        return True

    def _put(self, number: int, frames: Frames) -> None:
        with self._lock:
            answer = self.answers.get(number)
        if answer is not None:
            settle(answer, own(frames))  # a result may lie in memory that goes on changing


class NotRegisteredHereError(DirectoryError):
    """Raised when a member no longer has the service that it was called for; nothing was run."""

    def __init__(self, group: str, key: str, member: str) -> None:
        super().__init__(f"{key!r} is not registered in Group [{group}] by member {member!r}")


class _NotHere(Exception):  # noqa: N818 - becomes a reply of its own kind
    def __init__(self, name: Name) -> None:
        self.name = name


class Job:
    """One call of a user function, on the side where it runs.

    The result goes into *kept* where the caller wants a reference to it, else into the reply.
    """

    __slots__ = ("_endpoint", "_function", "_kept", "_message", "_sender", "expires")

    def __init__(
        self,
        endpoint: Endpoint,
        sender: str,
        message: wire.Message,
        kept: Future[Any] | None = None,
    ) -> None:
        self._endpoint, self._sender, self._message = endpoint, sender, message
        self._kept = kept
        self._function = 0  # number of one that the sender need not send again
        limit = message.limit
        self.expires = monotonic() + limit if limit else math.inf

    def run(self, reply: Future[Frames]) -> None:
        """Run the function, and complete *reply*: called by a handler thread."""
        if monotonic() >= self.expires:
            what = f"a call to {self._endpoint.name!r} that waited there for a thread"
            self.drop(CallTimeoutError(what, self._message.limit), reply)
            return
        try:
            with current.acting_for(self._endpoint):
                settle(
                    reply, self.answer() if self._kept is None else self._keep(self._kept, reply)
                )
        except BaseException as error:
            self.drop(error, reply)  # or its caller would wait for ever
            raise

    def drop(self, error: BaseException, reply: Future[Frames]) -> None:
        """Complete *reply* with *error* instead of running the function."""
        if self._kept is not None:
            fail(self._kept, error)
        settle(reply, self._endpoint.failed(error))

    def answer(self) -> Frames:
        """Run the function in the thread of the caller, and return the reply; never raises."""
        endpoint = self._endpoint
        try:
            function, args, kwargs = self._call()
            value = run(function, args, kwargs)
            data = endpoint.quick.value(value)
            if data is not None and not self._function:
                return [wire.QUICK_OK, data]
            return self._numbered(wire.result(endpoint.serializer, value))
        except BaseException as error:  # noqa: BLE001 - goes back to the caller
            return self._failed(error)

    def _keep(self, kept: Future[Any], reply: Future[Frames]) -> Frames:
        """Keep the result, and tell the caller before that the function runs."""
        me = self._endpoint
        try:
            function, args, kwargs = self._call()
            done = self._numbered(wire.join(Status.OK, me.serializer.dumps(None)))
        except BaseException as error:  # noqa: BLE001 - goes back to the caller
            missing = error.name if isinstance(error, _NotHere) else None
            fail(kept, NotRegisteredHereError(*missing, me.name) if missing else error)
            return self._failed(error)
        try:
            with methods_value(me.refs, function, args):
                settle(reply, done)
                kept.set_result(run(function, args, kwargs))
        except BaseException as error:  # noqa: BLE001 - raised where the value is asked for
            fail(kept, ended_by(error))
        return done

    def _call(self) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
        """Return the function and its arguments; raises ``_NotHere`` for a service that is not."""
        endpoint, message = self._endpoint, self._message
        if message.flags & QUICK:
            name, args, kwargs = endpoint.quick.read_call(message.body)
            if message.kind == Kind.CALL:
                if type(name[0]) is int:
                    return self._sent(name), args, kwargs
                return endpoint.quick.function(name), args, kwargs
            what: Any = name
        else:
            what, args, kwargs = endpoint.serializer.loads(message.body)
        if type(what) is tuple and type(what[0]) is int:
            return self._sent(what), args, kwargs
        if type(what) is tuple:  # the name of a registered function, which travels as data
            service = endpoint.registered.get(Registered(*what))
            if service is None:
                raise _NotHere(what)
            return service, args, kwargs
        if not callable(what):
            problem = f"a {type(what).__name__} is neither a function nor the name of a service"
            raise TypeError(problem)
        return what, args, kwargs

    def _sent(self, told: Any) -> Callable[..., Any]:
        """Return the function that the sender has sent, now or before."""
        endpoint = self._endpoint
        if not endpoint.quick.trusts:
            raise SerializationError("a function", "none is taken from anybody", loading=True)
        session = self._message.session
        function, self._function = endpoint.functions.function(self._sender, session, told)
        return function

    def _numbered(self, reply: Frames) -> Frames:
        return wire.renumbered(reply, self._function) if self._function else reply

    def _failed(self, error: BaseException) -> Frames:
        endpoint = self._endpoint
        try:
            if isinstance(error, _NotHere):
                body = endpoint.serializer.dumps(tuple(error.name))
                return wire.join(Status.NOT_REGISTERED, body)
        except Exception as unsendable:  # noqa: BLE001 - as for want of memory
            error = unsendable
        return self._numbered(endpoint.failed(error))
