"""Calls that leave together.

To carry a call that nobody waits for costs both members, and the transport, more than most
functions take. So quick calls with little data wait for one another while others are under way: up
to 32 of one thread to one member are one request, and their results one reply::

    request: (names or numbers of functions, each with for how many of the next calls), arguments of
        each call, its named arguments
    reply: (which have ended with small plain data, that data, (which, how many frames) for others),
        and those frames

The reply comes when all have ended. Where that takes longer it tells of those that have, and the
caller asks for the rest.
"""

from __future__ import annotations

import copy
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain, count, groupby, islice, repeat, starmap
from sys import modules
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any

from typing_extensions import Buffer

from pparallel.errors import CallTimeoutError, ResourceExhaustedError, SerializationError
from pparallel.interfaces.transport import Frames, Transport
from pparallel.runtime import dedicated
from pparallel.runtime.future import LeanFuture, fail, settle
from pparallel.runtime.interrupts import is_interrupt, raise_interrupt
from pparallel.runtime.plain import PLAIN
from pparallel.runtime.rpc import current, wire
from pparallel.runtime.rpc.closures import Told
from pparallel.runtime.rpc.future import RpcFuture, give_all
from pparallel.runtime.rpc.quick import Name, Quick
from pparallel.runtime.rpc.requests import Requests
from pparallel.runtime.rpc.window import Room, Window
from pparallel.runtime.timers import Timer, Timers
from pparallel.runtime.turn import PATIENCE, Turn
from pparallel.runtime.user_code import run

if TYPE_CHECKING:
    from pparallel.runtime.rpc.endpoint import Endpoint
    from pparallel.runtime.rpc.handlers import Job, Stream

TOGETHER = 32  #: calls in a batch, at the most
ENOUGH = 2  #: batches under way to a member beside which the next one may wait to grow
SMALL = 512  #: bytes of the arguments of a call, at the most
SOON = 50e-6  #: seconds after which it is looked again whether another thread has sent a batch
HELD = 0.001  #: seconds after which a batch leaves as it is
LATE = 0.001  #: seconds after which the results that are there do not wait for the others
LARGE = 2**16  #: bytes of results from which on others come with the next reply

_ROOM = TOGETHER * (SMALL + Window.OVERHEAD) - Window.OVERHEAD  # of a batch in the window

_LONG = frozenset({bytes, str})
_SHORT = PLAIN - _LONG

Key = tuple[str, int, int]  #: sender, its session, and the number of its request

#: Future, name of the function, arguments, named arguments: a tuple, for there are many.
Call = tuple[RpcFuture[Any], Name | Told, Sequence[Any], Mapping[str, Any] | None]


class Batches:
    """The batches of one member.

    Attributes:
        held: those that have not left, by member and calling thread. Whoever sends anything else
            calls :meth:`flush` first, and who waits :meth:`flush_all`.
        by_others: those under way that another thread than the calling one has sent.
    """

    def __init__(
        self,
        transport: Transport,
        requests: Requests,
        quick: Quick,
        window: Window,
        timers: Timers,
    ) -> None:
        self.transport, self.requests = transport, requests
        self.quick, self.window = quick, window
        self.held: dict[tuple[str, int], _Batch] = {}
        self.under_way: defaultdict[str, set[_Batch]] = defaultdict(set)  # by member
        self.by_others: set[_Batch] = set()
        self.timers = timers
        self._is_closed = False

    def put(self, to: str, timeout: float | None, call: Call) -> bool:
        """Send a call, perhaps with others; return False if it must go alone.

        Args:
            to: the member to call.
            timeout: seconds, from when it leaves.
            call: with arguments of at most :data:`SMALL` bytes.

        Raises:
            Exception: what the transport raises, if this call alone was to leave.
        """
        if self._is_closed:
            return False
        key = to, get_ident()
        batch = self.held.get(key)
        while batch is None or batch.timeout != timeout or not batch.add(call):
            if batch is not None:
                batch.leave()
            batch = _Batch(self, key, timeout)
            try:
                batch.left = self.window.take(batch.room, _ROOM, timeout)
                batch.timer = self.timers.call_later(HELD, batch.tick)
                self.held[key] = batch
            except BaseException as failed:
                self.window.give_back(batch.room)
                if isinstance(failed, ResourceExhaustedError):  # no thread: nothing would send it
                    return False
                raise
        many = len(batch.calls)
        # Looked at last: who closes flushes what it finds.
        if many >= TOGETHER or not self.under_way[to] or self._is_closed:
            error = batch.leave()
            if error is not None and many == 1:
                raise error
        return True

    def flush(self, to: str) -> None:
        """Send what the calling thread has for a member."""
        batch = self.held.get((to, get_ident()))
        if batch is not None:
            batch.leave()

    def may_be_overtaken(self, to: str) -> bool:
        """Return whether one of the calling thread may arrive after what goes by another way."""
        return (to, get_ident()) in {each.key for each in self.by_others.copy()}

    def flush_all(self, enough: float = math.inf) -> bool:
        """Send everything, but for members to which *enough* batches have just left.

        Returns:
            Whether it was everything: the next batch for those may grow for a moment.
        """
        since = time.monotonic() - HELD
        is_all = True
        for (to, _), batch in list(self.held.items()):
            if sum(each.since > since for each in self.under_way[to].copy()) < enough:
                batch.leave()
            else:
                is_all = False
        return is_all

    def refuse(self) -> None:
        """Take nothing more."""
        self._is_closed = True

    def close(self) -> None:
        """Fail what has not left, for the transport is closed; safe to call again."""
        self.refuse()
        self.flush_all()


class _Batch:
    """Calls of one thread to one member.

    Attributes:
        key: the member to call, and the thread.
        since: when it began, and later when it left.
        timeout: of each.
        left: of that, when there was room.
        timer: has it leave as it is.
        calls: which that thread adds to without a lock: first it adds one, then it looks whether
            the batch has left. Whoever sends the batch does it the other way round.
    """

    def __init__(self, batches: Batches, key: tuple[str, int], timeout: float | None) -> None:
        self._batches, self.key, self._to = batches, key, key[0]
        self.room = Room(self._to)
        self._turn = Turn()  # to be sent; a transport may complete a future inside
        self.since = time.monotonic()
        self.timeout = self.left = timeout
        self.timer: Timer | None = None
        self.calls: list[Call] = []
        self._has_left = False  # or is about to
        self._is_sent = False
        self._number = -1  # of its request, when it has left
        self._sent: list[Call] = []  # what it has left with
        self._error: Exception | None = None
        self._futures: dict[int, RpcFuture[Any]] = {}  # of those that have not ended
        self._reply: LeanFuture[Frames] | None = None  # sent again, it is answered once

    def add(self, call: Call) -> bool:
        """Take a call in; return False if it must go with another batch."""
        self.calls.append(call)
        if not self._has_left:
            return True
        # It may be just leaving, in this thread, which a signal has interrupted. What it has taken
        # along by now is sent, and nothing later.
        del self.calls[-1]
        return any(each is call for each in self._sent)

    def tick(self) -> None:
        """Leave; or do what a signal's handler that raised has kept from being done.

        A request that is sent once more has its number still, and is run once.
        """
        self._has_left = True
        if not self._turn.take(self._go):
            self.timer = self._batches.timers.call_later(HELD, self.tick)

    def leave(self) -> Exception | None:
        """Be sent, if it is not yet; return why that failed, and so the calls.

        Where another thread sends it, that is waited for, as what follows is to come after it. It
        is not where that thread may wait for this one, or does not go on for long.
        """
        me, until = get_ident(), time.monotonic() + PATIENCE
        self._has_left = True  # first: a handler's calls are to find another one
        while self._turn.owner != me and not self._turn.take(self._go):
            if self.key[1] != me or time.monotonic() > until or dedicated.is_awaited():
                break
            time.sleep(SOON)
        return self._error

    def _go(self) -> None:
        """Be sent; where a signal's handler raises, this is called again."""
        batches, requests = self._batches, self._batches.requests
        if not self._is_sent:
            if self._number < 0:
                self._number = requests.next_number(self._to)
            calls = self._sent
            if not calls:
                calls.extend(self.calls)  # in one go: see add()
            if calls:
                batches.under_way[self._to].add(self)
                self.since = time.monotonic()
                futures, names, args, kwargs = zip(*calls, strict=True)
                self._futures = self._futures or dict(enumerate(futures))
                request = (_counted(names), args, kwargs)
                encode = partial(requests.batch, self.key[1], self._number, request, self.left)
                self._reply = self._reply or self._awaited()
                if get_ident() != self.key[1]:
                    batches.by_others.add(self)
                self._error = self._send(encode, self.left, self._reply)
                if self._reply.done():  # before this was interrupted, and came here again
                    self._forget()
            else:  # whoever began it has not come to add its call, and will begin another
                batches.window.give_back(self.room)
            self._is_sent = True
        held, key = batches.held, self.key
        if key in held and held[key] is self:  # till here, so that what follows waits for it
            del held[key]  # without a call since it was found, as a signal's handler may go on
        if self.timer is not None:
            self.timer.cancel()

    def _forget(self) -> None:
        self._batches.under_way[self._to].discard(self)
        self._batches.by_others.discard(self)

    def _awaited(self) -> LeanFuture[Frames]:
        reply: LeanFuture[Frames] = LeanFuture()
        reply.add_done_callback(self._replied)
        return reply

    def _send(
        self, encode: Callable[[], Frames], timeout: float | None, reply: Future[Frames]
    ) -> Exception | None:
        """Send a request; what fails, for want of memory too, ends the calls."""
        try:
            self._batches.transport.send(self._to, encode(), timeout, reply)
        except Exception as error:  # noqa: BLE001 - goes to whoever waits
            raise_interrupt(error)
            fail(reply, error)
            return error
        return None

    def _replied(self, reply: Future[Frames]) -> None:
        """Take results in: called by the transport, once for each request."""
        self._is_sent = True
        self._forget()
        try:
            self._take(reply)
        except BaseException as error:
            if is_interrupt(error):  # of the thread that receives: results are not its own
                self._take(reply)
                raise
            self._fail(error)
        finally:
            if self._futures:  # ask for the results that are not there yet
                left = None
                if self.left is not None:
                    left = max(self.since + self.left - time.monotonic(), 0.001)
                requests = self._batches.requests
                encode = partial(requests.rest, self._to, self._number)
                self._send(encode, left, self._awaited())
            else:
                self._batches.window.give_back(self.room)

    def _take(self, reply: Future[Frames]) -> None:
        if error := reply.exception():
            if isinstance(error, CallTimeoutError):  # of the last request, perhaps
                error = CallTimeoutError(f"a request to {self._to!r}", self.timeout or 0.0)
            self._fail(error)
            return
        frames = reply.result()
        futures = self._futures
        if frames[0] != wire.QUICK_OK:  # it says why there are no results
            for each in futures.values():
                settle(each, frames)
            futures.clear()
            return
        indices, values, framed = self._batches.quick.read(frames[1])
        give_all(futures, zip(indices, values, strict=True))
        at = 2
        for index, many in framed:
            if index in futures:
                settle(futures[index], frames[at : at + many])
                del futures[index]
            at += many

    def _fail(self, error: BaseException) -> None:
        for future in self._futures.values():
            fail(future, _another(error))  # one object in many threads would mix their tracebacks
        self._futures.clear()


def _another(error: BaseException) -> BaseException:
    try:
        return copy.copy(error)
    except Exception as uncopied:  # noqa: BLE001 - a class of others, which cannot be copied
        raise_interrupt(uncopied)
        return error


def _counted(names: Sequence[Name | Told]) -> list[tuple[Name | Told, int]]:
    """Return each name with how often it comes before another does."""
    if names.count(names[0]) == len(names):  # as it is most of the time
        return [(names[0], len(names))]
    return [(name, len(list(each))) for name, each in groupby(names)]


class BatchRun:
    """Runs calls, each once, and answers with their results.

    Attributes:
        stream: of its jobs, where the thread that received them is to run them.
        timer: calls :meth:`tick`.
        over: when the last of them ended; infinite before.
        expires: when nobody waits for their results any more.
    """

    def __init__(self, endpoint: Endpoint, key: Key, request: Any, limit: float = 0.0) -> None:
        """Know the calls, as :mod:`pparallel.runtime.rpc.batches` writes them.

        Args:
            endpoint: of the member that runs them.
            key: of the request.
            request: the calls.
            limit: seconds within which their results are wanted; 0: no limit.
        """
        self._endpoint, self._key = endpoint, key
        counted, args, kwargs = request
        self._args, self._kwargs = args, kwargs
        self._many = len(args)
        names = chain.from_iterable(starmap(repeat, counted))
        self._names = list(islice(names, self._many + 1))  # the number may be anything
        if not len(self._names) == len(kwargs) == self._many:
            raise SerializationError("a batch of calls", "something is missing", loading=True)
        self.stream: Stream | None = None
        self.timer: Timer | None = None
        self._began = began = time.monotonic()
        self.over = math.inf if self._many else began
        self.expires = began + limit if limit else math.inf
        self._lock = RLock()
        # A call that ends puts its result here first, then looks whether it is to be told of: no
        # lock is taken for most. Whoever says that results are late looks here afterwards.
        self._values: deque[tuple[int, object]] = deque()  # with which call had it
        self._framed: deque[tuple[int, Frames]] = deque()  # of those that are not small data
        self._ended = count(1)
        self._is_late = False
        self._reply: Future[Frames] | None = None

    def jobs(self) -> list[Job]:
        """Return the calls, to be run in order by whatever threads."""
        each = self._names, self._args, self._kwargs
        return list(map(partial, repeat(self._run), count(), *each))

    def reply(self) -> Frames | Future[Frames]:
        """Return the next reply, or what will be it: the sender waits for one at a time."""
        with self._lock:
            if self._is_ready():
                return self._take()
            self._reply = reply = LeanFuture[Frames]()
        return reply

    def tick(self) -> None:
        """Tell what is there: it is late."""
        endpoint = self._endpoint
        endpoint.keep_late(self._key, self)  # first: from then on its sender may ask for it
        self._is_late = True
        if self.stream is not None:
            endpoint.handlers.hand_over(self.stream)
        self._tell()

    def _run(
        self, index: int, name: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None
    ) -> None:
        endpoint = self._endpoint
        if current.acting.get() is not endpoint:
            current.act_for(endpoint)
        try:
            if self._is_late and time.monotonic() >= self.expires:
                what = f"a call to {endpoint.name!r} that waited there for a thread"
                raise CallTimeoutError(what, self.expires - self._began)
            module = modules.get(name[0])  # as Quick.function(), to call which is felt here
            function = None if module is None else module.__dict__.get(name[1])
            if function is None:
                function = self._function(name)
            value = run(function, args, kwargs)
            kind = type(value)
            if kind in _SHORT or (kind in _LONG and len(value) <= SMALL):
                self._values.append((index, value))
            elif kind in _LONG:
                self._framed.append((index, [wire.QUICK_OK, endpoint.quick.dumps(value)]))
            else:
                reply = wire.result(endpoint.serializer, value)
                self._framed.append((index, reply))
        except BaseException as error:  # noqa: BLE001 - goes back to the caller
            self._framed.append((index, endpoint.failed(error)))
        is_last = next(self._ended) == self._many
        if is_last or self._is_late:
            self._tell(is_last)

    def _function(self, name: Any) -> Callable[..., Any]:
        """Return a function that was not found at once, by its name or number."""
        if type(name[0]) is not int:
            return self._endpoint.quick.function(name)
        sender, session, _ = self._key
        return self._endpoint.functions.function(sender, session, name)[0]

    def drop(self, error: Exception, index: int, *_: object) -> None:
        """Have a call end with *error* instead of running it."""
        self._framed.append((index, self._endpoint.failed(error)))
        is_last = next(self._ended) == self._many
        if is_last or self._is_late:
            self._tell(is_last)

    def _tell(self, is_last: bool = False) -> None:
        """Tell whoever waits of what there is, if it is time."""
        if is_last:
            self.over = time.monotonic()
            if self.timer is not None:
                self.timer.cancel()
        frames: Frames | None = None
        with self._lock:
            reply = self._reply
            if reply is not None and self._is_ready():
                self._reply, frames = None, self._take()
            self._forget()
        if reply is not None and frames is not None:
            settle(reply, frames)

    def _forget(self) -> None:
        """Have nobody ask for more, if there is none; called with the lock held."""
        if self._is_late and self.over < math.inf and not (self._values or self._framed):
            self._endpoint.late_batches.pop(self._key, None)

    def _is_ready(self) -> bool:
        return self.over < math.inf or (self._is_late and bool(self._values or self._framed))

    def _take(self) -> Frames:
        """Return the next reply; of large results, as many as go well into one message."""
        counts: list[tuple[int, int]] = []
        frames: list[Buffer] = []
        size = 0
        while self._framed and size <= LARGE:
            index, each = self._framed.popleft()
            counts.append((index, len(each)))
            frames += each
            size += wire.size(each)
        values = self._values
        pairs = [values.popleft() for _ in range(len(values))]  # others may append meanwhile
        try:
            columns: Iterable[Sequence[Any]] = zip(*pairs, strict=True) if pairs else ((), ())
            body = self._endpoint.quick.dumps((*columns, counts))
        except (MemoryError, ValueError) as error:  # of 2 GiB and more; those who wait are told
            self._framed.clear()
            self._forget()
            return self._endpoint.failed(error)
        if self._framed and not self._is_late:
            self._is_late = True
            self._endpoint.keep_late(self._key, self)
        self._forget()
        return [wire.QUICK_OK, body, *frames]
