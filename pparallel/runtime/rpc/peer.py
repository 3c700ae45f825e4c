"""Requests to and from one other member.

There is one table of requests, one way to send, and one rule that has small calls leave together:
a call leaves at once if no message with calls to that member is unanswered, and results leave when
the calls of their thread have run; otherwise both leave when 32 of them or 32 KiB are held, when a
message of that member comes, when a thread waits for it, or after a millisecond.
"""

from __future__ import annotations

import copy
import logging
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from threading import get_ident
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol

from typing_extensions import Buffer

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.flat_views import own
from pparallel.runtime.future import when_done
from pparallel.runtime.rpc.codec import (
    ACK,
    CALL,
    CALLS,
    CANCEL,
    COUNT,
    EXCHANGE,
    FLAGS,
    ID,
    IDEMPOTENT,
    KIND,
    RESULT,
    RESULTS,
    SERVICE,
    SERVICES,
    THREAD,
    Codec,
    Data,
    Encoded,
    Item,
    size_of,
)
from pparallel.runtime.rpc.executor import Delays
from pparallel.runtime.state_lock import is_held_here, refuse_reentry, state_lock

logger = logging.getLogger(__name__)

MOST = 32  #: items that are held, at the most
FULL = 2**15  #: bytes of them
HELD = 0.001  #: seconds for which one is held, at the most
OVERHEAD = 1024  #: bytes that a call is taken to cost beyond its own
UNCOUNTED = 4096  #: bytes of a call that its thread waits for: there are no more than threads
PATIENCE = 0.2  #: seconds that a call of a called function waits for room
LONGEST = 30.0  #: seconds up to which the time between two attempts doubles
SOON = 0.5  #: seconds after which a result is acknowledged
MANY = 64  #: results that are acknowledged at once
MOST_GAPS = 2**14  #: ranges of ids that have not come
MOST_CANCELLED = 2**16  #: calls to this member that are cancelled and may run yet
MOST_THREADS = 2**12  #: calling threads whose latest call is known

_NONE: tuple[Buffer, ...] = ()


class Sender(Protocol):
    """A part of the transport."""

    def send(self, to: str, frames: Frames) -> None:
        """As :meth:`Transport.send`."""

    def exchange(self, to: str, frames: Frames, timeout: float | None) -> Frames | None:
        """As :meth:`Transport.exchange`."""


class ResponseHandler(Protocol):
    """Takes the outcome of one request: a future is one."""

    def answer(self, item: Item, frames: Frames) -> None:
        """Take the result in; once."""

    def fail(self, error: BaseException) -> None:
        """Take an error in; once."""


#: A call or ask that has been sent and not answered: the handler of the response; when it fails, by
#: ``time.monotonic``, or None; its time-out in seconds, for the error; bytes that it takes of the
#: room; and what is sent again, or None. A tuple, as one is made for each call.
_Request = tuple[ResponseHandler, float | None, float | None, int, Encoded | None]
HANDLER: Final = 0  #: places in it
DEADLINE: Final = 1
TIMEOUT: Final = 2
SIZE: Final = 3
AGAIN: Final = 4


class _Message(NamedTuple):
    kind: int
    items: list[Item]
    frames: list[Buffer]

    def leaving(self, head: bytes) -> Frames:
        """Return what is sent; frames of results are not kept here."""
        frames = [head, *self.frames]
        if self.kind == RESULTS:
            self.frames.clear()
        return frames

    def is_whole(self) -> bool:
        """Return whether it can be sent, or sent again."""
        return len(self.frames) == sum(int(each[COUNT]) for each in self.items)


class Arrived:
    """The ids that have arrived, as intervals: the highest, and the ranges below that are missing.

    The sender numbers its requests from 1 on. Ids of exchanges never arrive here: the range between
    two messages is a gap until the sender's mark has passed it.
    """

    def __init__(self) -> None:
        self._highest = 0
        self._gaps: list[tuple[int, int]] = []  # first and last of each range, ascending

    def add(self, number: int) -> bool:
        """Return whether *number* has not arrived before; it has, from now on."""
        if number > self._highest:
            if number > self._highest + 1:
                self._gaps.append((self._highest + 1, number - 1))
                if len(self._gaps) > MOST_GAPS:
                    del self._gaps[: MOST_GAPS // 2]
            self._highest = number
            return True
        gaps = self._gaps
        at = bisect_right(gaps, number, key=lambda each: each[0]) - 1 if gaps else -1
        if at < 0 or gaps[at][1] < number:
            return False
        first, last = gaps[at]
        rest = [(first, number - 1), (number + 1, last)]
        gaps[at : at + 1] = [each for each in rest if each[0] <= each[1]]
        return True

    def cut(self, mark: int) -> None:
        """Take all ids below *mark* for arrived: their sender no longer waits for them."""
        gaps = self._gaps
        while gaps and gaps[0][1] < mark:
            del gaps[0]
        if gaps and gaps[0][0] < mark:
            gaps[0] = mark, gaps[0][1]

    def __len__(self) -> int:
        return len(self._gaps)


class Peer:
    """Another member: requests to it, those from it, and what is to be sent to it.

    All state is guarded by the state lock. Messages are sent without it, by one thread at a time in
    the order in which they were put in: whoever finds another one sending leaves them to that one.

    Attributes:
        requests: what has been sent as messages and not answered, by id.
        cancelled: calls of the member that are not to be run; those that run are among them.
    """

    def __init__(
        self,
        name: str,
        transport: Sender,
        codec: Codec,
        timers: Delays,
        *,
        limit: int,
        exchanges: bool = True,
        retry_after: float = 0.2,
        is_called: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Have nothing sent and nothing received.

        Args:
            name: of the member.
            transport: carries messages to it.
            codec: writes heads.
            timers: call a function later.
            limit: bytes of calls that may be unanswered.
            exchanges: whether the transport has a way for these.
            retry_after: seconds after which an idempotent call is sent again the first time.
            is_called: whether the calling thread runs a function for another member.
            clock: returns the time in seconds.
        """
        self.name = name
        self._transport, self._codec, self._timers, self._clock = transport, codec, timers, clock
        self._has_exchange = exchanges
        self._limit, self._retry_after, self._is_called = limit, retry_after, is_called
        self._why_ended: Callable[[], BaseException] | None = None
        # as a caller
        self.requests: dict[int, _Request] = {}
        self._last = 0  # id
        # Id of the last call in a message, by thread; negative where the call is confirmed before
        # its function is called.
        self._latest: dict[int, int] = {}
        # Bytes of calls that have expired and are not answered, by id: they may wait yet to be sent
        # or run, and take their room until then.
        self._given_up: dict[int, int] = {}
        self._marks: deque[int] = deque()  # last id of each unanswered message with calls
        self._next_look: float | None = None  # when deadlines are looked at
        self._armed: set[float] = set()  # deadlines with a timer
        self._used = 0
        self._room = threading.Condition(state_lock)
        self._waiters = 0
        self._acks: list[int] = []
        self._acks_soon = False
        # what is to be sent
        self._held: list[Item] = []
        self._held_frames: list[Buffer] = []
        self._held_bytes = 0
        self._calls_held = 0  # the last id among them
        self._outgoing: deque[_Message] = deque()
        self._sender: object | None = None  # who sends
        self._ticks = False
        # as the one that is called
        self.arrived = Arrived()
        self.kept: dict[int, Encoded | None] = {}  # results of calls that may come again
        self._started: dict[int, int] = {}  # id of the latest call that has come, by thread
        self._answering: dict[int, Callable[[], object]] = {}  # cancel calls that answer later
        self.cancelled: dict[int, None] = {}

    # -- calls --------------------------------------------------------------------------------

    def call(
        self,
        flags: int,
        data: Data | None,
        frames: Sequence[Buffer],
        timeout: float | None,
        wait: Callable[[], ResponseHandler],
    ) -> tuple[Item, Frames] | ResponseHandler:
        """Call a function, and wait for the result in this thread.

        Args:
            flags: of the call.
            data: of the call, for the head.
            frames: of the call.
            timeout: seconds.
            wait: makes the handler of the response, where an earlier call of this thread is under
                way that this one must not overtake.

        Returns:
            The result, or what will have it.

        Raises:
            CallTimeoutError: it did not come within *timeout* seconds.
            PeerLostError: the member has ended.
            ClosedError: this member's runtime has.
        """
        thread = get_ident()
        size = (0 if data is None else data[3]) + (size_of(frames) if frames else 0)
        if is_held_here():
            refuse_reentry()
        found = None
        with state_lock:
            number = 0
            if self._has_exchange and not self._is_behind(thread, is_call=True):
                if size > UNCOUNTED:
                    size += OVERHEAD
                    timeout = self._take_room(size, timeout, is_sync=True)
                else:
                    size = 0
                number = self._next_id()
        if number:
            began = self._clock()
            item = (CALL, number, thread, timeout or 0.0, flags, None, data, len(frames))
            try:
                found = self._exchange(item, frames, timeout)
            finally:
                if size:
                    with state_lock:
                        self._give_back(size)
            if found is None and timeout is not None:
                timeout = max(began + timeout - self._clock(), 0.001)
        if found is None:
            handler = wait()
            self.call_async(handler, flags, data, frames, timeout)
            return handler
        return found

    def call_async(
        self,
        handler: ResponseHandler,
        flags: int,
        data: Data | None,
        frames: Sequence[Buffer],
        timeout: float | None,
        ref_id: str | None = None,
    ) -> int:
        """Call a function, have *handler* take the result, and return the id of the call.

        Raises:
            CallTimeoutError: there was no room for it within *timeout* seconds.
            PeerLostError: the member has ended.
            ClosedError: this member's runtime has.
        """
        thread = get_ident()
        size = OVERHEAD + (0 if data is None else data[3]) + (size_of(frames) if frames else 0)
        if is_held_here():
            refuse_reentry()
        left, again, ticks = timeout, None, False
        with state_lock:
            if self._used + size > self._limit:
                left = self._take_room(size, timeout, is_sync=False)
            else:
                self._used += size
            if self._why_ended is not None:
                self._give_back(size)
                raise self._why_ended()
            number = self._last = self._last + 1
            item = (CALL, number, thread, left or 0.0, flags, ref_id, data, len(frames))
            if flags & IDEMPOTENT:
                again = (item, frames)
            deadline = None if left is None else self._clock() + left
            self.requests[number] = (handler, deadline, timeout, size, again)
            self._latest[thread] = number if ref_id is None else -number
            if len(self._latest) > MOST_THREADS:
                self._forget_threads()
            self._calls_held = number
            ticks = self._hold(item, frames, size - OVERHEAD, not self._marks)
        if deadline is not None and (self._next_look is None or deadline < self._next_look):
            self._look_at(deadline)
        if again is not None:
            self._timers.call_later(self._retry_after, partial(self._resend, number, 1))
        if ticks:
            self._timers.call_later(HELD, self._tick)
        elif self._outgoing:
            self._send_all()
        return number

    def cancel(self, number: int) -> None:
        """Have a call not be run, or run no longer, if it has no result yet."""
        if is_held_here():
            refuse_reentry()
        with state_lock:
            if number not in self.requests:
                return
            request = self._give_up(number)
            self._hold((CANCEL, number, 0), _NONE, 0, True)
        self._fail(number, request, CancelledError())
        self._send_all()

    def ask(
        self, key: str, body: object, buffers: Sequence[Buffer], timeout: float | None
    ) -> tuple[Item, Frames] | None:
        """Ask a service, in this thread; None: it has no way of its own for that now."""
        if is_held_here():
            refuse_reentry()
        with state_lock:
            if self._why_ended is not None:
                raise self._why_ended()
            if not self._has_exchange or self._is_behind(get_ident(), is_call=False):
                return None
            number = self._next_id()
        item, frames = self._codec.service(number, key, body, buffers)
        return self._exchange(item, frames, timeout)

    def ask_async(
        self,
        handler: ResponseHandler,
        key: str,
        body: object,
        buffers: Sequence[Buffer],
        timeout: float | None,
    ) -> None:
        """Ask a service, and have *handler* take the result."""
        if is_held_here():
            refuse_reentry()
        item, frames = self._codec.service(0, key, body, buffers)
        with state_lock:
            if self._why_ended is not None:
                raise self._why_ended()
            number = self._last = self._last + 1
            item = (SERVICE, number, *item[2:])
            deadline = None if timeout is None else self._clock() + timeout
            self.requests[number] = (handler, deadline, timeout, 0, None)
            self._put(_Message(SERVICES, [item], list(frames)))
        if deadline is not None:
            self._look_at(deadline)
        self._send_all()

    def _is_behind(self, thread: int, *, is_call: bool) -> bool:
        """Return whether an exchange might overtake a call of *thread*; with the lock held."""
        latest = self._latest.get(thread)
        if latest is None:
            return False
        if latest < 0:
            if is_call:
                return True
            latest = -latest
        return latest in self.requests or latest in self._given_up

    def _forget_threads(self) -> None:
        """Forget threads none of whose calls is under way; with the lock held."""
        self._latest = {
            thread: number
            for thread, number in self._latest.items()
            if number < 0 or number in self.requests or number in self._given_up
        }

    def _next_id(self) -> int:
        """Return the id of the next request; called with the lock held."""
        if self._why_ended is not None:
            raise self._why_ended()
        number = self._last = self._last + 1
        return number

    def _exchange(
        self, item: Item, frames: Frames, timeout: float | None
    ) -> tuple[Item, Frames] | None:
        """Return the reply; None: there is no way for an exchange now, and nothing was sent."""
        if self._held or self._outgoing:
            self.flush()
        head = self._codec.head(item, EXCHANGE)
        reply = self._transport.exchange(self.name, [head, *frames], timeout)
        return None if reply is None else (self._codec.items(reply[0]), reply[1:])

    # -- room ---------------------------------------------------------------------------------

    def _take_room(self, size: int, timeout: float | None, *, is_sync: bool) -> float | None:
        """Wait for room, called with the lock held; return the seconds of *timeout* left.

        One call alone may exceed the limit. Inside a called function, where members that call one
        another in a circle would wait for one another's results, a call that is waited for does
        not wait, and others no longer than :data:`PATIENCE`.
        """
        if self._is_full(size):
            began = self._clock()
            patience = (0.0 if is_sync else PATIENCE) if self._is_called() else None
            short = patience is not None and (timeout is None or patience <= timeout)
            until = patience if short else timeout
            self._waiters += 1
            try:
                while self._is_full(size):
                    left = None if until is None else began + until - self._clock()
                    if left is not None and left <= 0:
                        if short:
                            break
                        what = f"a call to {self.name!r} that waited for room"
                        raise CallTimeoutError(f"{what} (transport.max_in_flight)", timeout or 0.0)
                    self._room.wait(left)
            finally:
                self._waiters -= 1
            if timeout is not None:
                timeout = max(began + timeout - self._clock(), 0.001)
        self._used += size
        return timeout

    def _is_full(self, size: int) -> bool:
        return self._used > 0 and self._used + size > self._limit and self._why_ended is None

    def _give_back(self, size: int) -> None:
        self._used -= size
        if self._waiters:
            self._room.notify_all()

    # -- sending ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send what is held."""
        if self._held:
            with state_lock:
                self._close_held()
        if self._outgoing:
            self._send_all()

    def post(self, encoded: Encoded | Future[Encoded], *, is_service: bool = False) -> None:
        """Send the result of a request of this member, perhaps with others, once it is there."""
        if isinstance(encoded, Future):
            encoded.add_done_callback(lambda it: self.post(it.result(), is_service=is_service))
            return
        item, frames = encoded
        copies = own(frames) if item[ID] in self.kept else None  # the memory may change
        ticks = False
        with state_lock:
            if copies is not None and item[ID] in self.kept:
                self.kept[item[ID]] = item, copies
            if self.cancelled:
                self.cancelled.pop(item[ID], None)
            if is_service:
                self._put(_Message(SERVICES, [item], list(frames)))
            else:
                ticks = self._hold(item, frames, size_of(frames) if frames else 0, False)
        del encoded, frames  # the transport may move memory to which nothing refers
        if ticks:
            self._timers.call_later(HELD, self._tick)
        elif self._outgoing:
            self._send_all()

    def _hold(self, item: Item, frames: Frames, size: int, leaves: bool) -> bool:
        """Hold an item, or have all leave; return whether a tick is to be begun.

        Called with the lock held.
        """
        self._held.append(item)
        if frames:
            self._held_frames.extend(frames)
        self._held_bytes += size
        if leaves or len(self._held) >= MOST or self._held_bytes >= FULL:
            self._close_held()
        elif not self._ticks:
            self._ticks = True
            return True
        return False

    def _tick(self) -> None:
        self._ticks = False
        self.flush()

    def _close_held(self) -> None:
        """Have what is held leave; called with the lock held."""
        if self._held:
            kind = CALLS if self._calls_held else RESULTS
            self._outgoing.append(_Message(kind, self._held, self._held_frames))
            self._held, self._held_frames, self._held_bytes = [], [], 0
            if self._calls_held:
                self._marks.append(self._calls_held)
                self._calls_held = 0

    def _put(self, message: _Message) -> None:
        self._close_held()
        self._outgoing.append(message)

    def _send_all(self) -> None:
        """Send the messages that are to leave, unless another thread does."""
        me = object()  # and not the thread, which may come here again in the midst of it
        message: _Message | None = None
        lost: list[Item] = []
        try:
            while True:
                with state_lock:
                    if self._sender is me:
                        self._sender = None
                    if self._sender is not None or not self._outgoing:
                        return
                    self._sender = me
                    message = self._outgoing[0]
                    del self._outgoing[0]  # it is held from here on, whatever interrupts
                    mark = self._low_mark()
                try:
                    head = self._codec.head([mark, *message.items], message.kind)
                    self._transport.send(self.name, message.leaving(head))
                except Exception as error:  # noqa: BLE001 - goes to whoever waits
                    self._not_sent(message, error)
        except BaseException:
            # Perhaps it has left: the receiver drops what comes twice.
            with state_lock:
                if self._sender is me:
                    self._sender = None
                    if message is not None and message.is_whole():
                        self._outgoing.appendleft(message)
                    elif message is not None:
                        lost = [each for each in message.items if each[KIND] == RESULT]
            for item in lost:
                self._replace(item, ClosedError("the runtime", "was interrupted while sending"))
            self._timers.call_later(HELD, self.flush)
            raise

    def _low_mark(self) -> int:
        """Return the lowest id that this member still waits for."""
        return next(iter(self.requests), self._last + 1)

    def _not_sent(self, message: _Message, error: BaseException) -> None:
        """End what could not be sent; of several items each is tried alone."""
        is_over = isinstance(error, (ClosedError, PeerLostError))
        items, alone = message.items, list[_Message]()
        if len(items) > 1 and not is_over:
            is_whole = message.is_whole()
            found = _with_frames([0, *items], message.frames if is_whole else [])
            alone = [
                _Message(message.kind, [item], list(frames))
                for item, frames in found
                if is_whole or not item[COUNT]
            ]
            items = [] if is_whole else [item for item in items if item[COUNT]]
        with state_lock:
            self._outgoing.extendleft(reversed(alone))
        for item in items:
            if item[KIND] in (CALL, SERVICE):
                self._finish(item[ID], copied(error))
            elif item[KIND] == RESULT and not is_over:
                self._replace(item, error)
            elif item[KIND] == ACK and not is_over:
                with state_lock:
                    self._acks.extend(item[ID])
                self._timers.call_later(SOON, self._send_acks)

    def _replace(self, item: Item, error: BaseException) -> None:
        """Send an error in the place of a result that could not be sent."""
        logger.warning("A result for %s could not be sent: %r", self.name, error)
        found, frames = self._codec.failed(item[ID], error)
        try:
            head = self._codec.head([self._low_mark(), found], RESULTS)
            self._transport.send(self.name, [head, *frames])
        except Exception:
            logger.exception("%s is not told of it", self.name)

    # -- what ends requests -------------------------------------------------------------------

    def _finish(self, number: int, error: BaseException) -> None:
        """Fail a request whose answer does not come."""
        with state_lock:
            request = self.requests.pop(number, None)
            self._give_back(self._given_up.pop(number, 0) if request is None else request[SIZE])
        if request is not None:
            self._fail(number, request, error)

    def _fail(self, number: int, request: _Request, error: BaseException) -> None:
        request[HANDLER].fail(error)
        if request[AGAIN] is not None:
            self._acknowledge(number)

    def _give_up(self, number: int) -> _Request:
        """Take a request out whose answer may come yet; called with the lock held."""
        request = self.requests.pop(number)
        if request[SIZE]:
            self._given_up[number] = request[SIZE]
        return request

    def _look_at(self, deadline: float) -> None:
        """Look then what is over its deadline, unless it is looked before."""
        with state_lock:
            if self._next_look is not None and self._next_look <= deadline:
                return
            self._next_look = deadline
        self._arm(deadline)

    def _arm(self, deadline: float) -> None:
        """Have it looked at a deadline what is over; each has one timer."""
        with state_lock:
            if deadline in self._armed:
                return
            self._armed.add(deadline)
        self._timers.call_later(deadline - self._clock(), partial(self._expire, deadline))

    def _expire(self, due: float) -> None:
        """Fail what is over its deadline."""
        with state_lock:
            self._armed.discard(due)
            now, nearest, over = self._clock(), None, list[int]()
            for number, request in self.requests.items():
                deadline = request[DEADLINE]
                if deadline is None:
                    continue
                if deadline <= now:
                    over.append(number)
                elif nearest is None or deadline < nearest:
                    nearest = deadline
            self._next_look = nearest
            expired = [(number, self._give_up(number)) for number in over]
        if nearest is not None:
            self._arm(nearest)
        for number, request in expired:
            timeout = request[TIMEOUT] or 0.0
            self._fail(number, request, CallTimeoutError(f"a request to {self.name!r}", timeout))

    def _resend(self, number: int, attempts: int) -> None:
        """Send an idempotent call again, and so on until it has ended."""
        with state_lock:
            request = self.requests.get(number)
            if request is None or request[AGAIN] is None:
                return
            (item, frames), deadline = request[AGAIN], request[DEADLINE]
            if deadline is not None:
                left = max(deadline - self._clock(), 0.001)
                item = (*item[:3], left, *item[4:])
            self._put(_Message(CALLS, [item], list(frames)))
        delay = min(self._retry_after * 2 ** min(attempts, 30), LONGEST)
        self._timers.call_later(delay, partial(self._resend, number, attempts + 1))
        self._send_all()

    def _acknowledge(self, *numbers: int) -> None:
        """Tell the other member, soon, that these results need not be kept any more."""
        with state_lock:
            self._acks.extend(numbers)
            now = len(self._acks) >= MANY
            soon = not self._acks_soon and not now and self._why_ended is None
            self._acks_soon = self._acks_soon or soon
        if now:
            self._send_acks()
        elif soon:
            self._timers.call_later(SOON, self._send_acks)

    def _send_acks(self) -> None:
        with state_lock:
            self._acks_soon = False
            if not self._acks or self._why_ended is not None:
                return
            numbers, self._acks = self._acks, []
            self._put(_Message(SERVICES, [(ACK, numbers, 0)], []))
        self._send_all()

    def reset(self, error: BaseException) -> None:
        """Fail what may not have arrived, or whose result may not; what is sent again goes on."""
        with state_lock:
            lost = [number for number, each in self.requests.items() if each[AGAIN] is None]
            lost += self._given_up
            self._marks.clear()
        for number in lost:
            self._finish(number, copied(error))

    def end(self, why: Callable[[], BaseException]) -> None:
        """Fail all requests, and those to come, with what *why* returns; the first one counts."""
        with state_lock:
            if self._why_ended is not None:
                return
            self._why_ended = why
            requests = list(self.requests.values())
            self.requests.clear()
            self._given_up.clear()
            self._used = 0
            self._room.notify_all()
            self._outgoing.clear()
            self._held, self._held_frames, self._acks = [], [], []
            self.kept.clear()
            answering = list(self._answering.values())
        for request in requests:
            request[HANDLER].fail(copied(why()))
        for cancel in answering:
            cancel()

    # -- what arrives -------------------------------------------------------------------------

    def received(self, items: Sequence[Any], frames: Frames) -> list[Encoded]:
        """Take a message in: end requests, and return the calls and asks that are to be run."""
        found = _with_frames(items, frames)
        with state_lock:
            while self.kept and (number := next(iter(self.kept))) < items[0]:
                del self.kept[number]
            ended = self._take_results(found)
            todo, again = self._take_asks(found) if len(ended) < len(found) else ([], [])
            if len(self.arrived):
                self.arrived.cut(items[0])
            if self._held and not self._marks:
                self._close_held()
        acks = []
        for request, item, part in ended:
            request[HANDLER].answer(item, part)
            if request[AGAIN] is not None:
                acks.append(item[ID])
        if acks:
            self._acknowledge(*acks)
        for encoded in again:
            self._answer_again(encoded)
        if self._outgoing:
            self._send_all()
        return todo

    def _take_results(self, found: list[Encoded]) -> list[tuple[_Request, Item, Frames]]:
        """Return the requests that have ended; called with the lock held."""
        pop, marks, used = self.requests.pop, self._marks, 0
        ended: list[tuple[_Request, Item, Frames]] = []
        for item, part in found:
            if item[KIND] != RESULT:
                continue
            request = pop(item[ID], None)
            if request is not None:
                ended.append((request, item, part))
                used += request[SIZE]
            elif self._given_up:
                used += self._given_up.pop(item[ID], 0)
            while marks and item[ID] >= marks[0]:
                marks.popleft()
        if used:
            self._give_back(used)
        return ended

    def _take_asks(self, found: list[Encoded]) -> tuple[list[Encoded], list[Encoded]]:
        """Return what is to be run, and what else is to be answered; called with the lock held."""
        todo: list[Encoded] = []
        again: list[Encoded] = []
        for each in found:
            item = each[0]
            if item[KIND] == ACK:
                for number in item[ID]:
                    self.kept.pop(number, None)
            elif item[KIND] == CANCEL:
                again.append(each)
            elif item[KIND] != RESULT:
                if self.is_new(item):
                    todo.append(each)
                elif (kept := self.kept.get(item[ID])) is not None:
                    again.append(kept)
        return todo, again

    def _answer_again(self, encoded: Encoded) -> None:
        """Send a result again, or cancel a call of the other member."""
        kind, number = encoded[0][KIND], encoded[0][ID]
        if kind != CANCEL:
            self.post(encoded)
            return
        with state_lock:
            cancel = self._answering.get(number)
            if cancel is None:
                self.cancelled[number] = None
                if len(self.cancelled) > MOST_CANCELLED:
                    self.cancelled.pop(next(iter(self.cancelled)), None)
        if cancel is not None:
            cancel()

    def answers_later(self, number: int, source: Future[Any], cancel: Callable[[], object]) -> None:
        """Have *cancel* called where a call is cancelled before *source* has its result."""
        with state_lock:
            self._answering[number] = cancel
            is_over = self._why_ended is not None or number in self.cancelled
        when_done(source, lambda _: self._answering.pop(number, None))
        if is_over:
            cancel()

    def is_new(self, item: Item) -> bool:
        """Return whether a call or ask has not come before; called with the lock held."""
        number = item[ID]
        if not self.arrived.add(number):
            return False
        if item[KIND] == CALL:
            if item[FLAGS] & IDEMPOTENT:
                self.kept[number] = None
            self.note_arrived(item)
        return True

    def note_arrived(self, item: Item) -> None:
        """Take note that a call has come, which its thread sent after those with lower ids."""
        started, thread, number = self._started, item[THREAD], item[ID]
        if number > started.get(thread, 0):
            started[thread] = number
            if len(started) > MOST_THREADS:
                started.pop(next(iter(started)), None)

    def is_overtaken(self, item: Item) -> bool:
        """Return whether the thread of a direct call has called again: it has given this one up."""
        return bool(self._started.get(item[THREAD], 0) > item[ID])

    def forget(self, why: Callable[[], BaseException]) -> None:
        """Refuse what is asked, with what *why* returns, and forget the rest: in a forked child."""
        self._why_ended = why
        self._outgoing.clear()
        self._held, self._held_frames, self._acks = [], [], []


def _with_frames(items: Sequence[Any], frames: Frames) -> list[Encoded]:
    """Return the items of a message, each with its frames."""
    if not frames:
        return [(item, _NONE) for item in items[1:]]
    found: list[Encoded] = []
    at = 0
    for item in items[1:]:
        found.append((item, frames[at : at + item[COUNT]]))
        at += item[COUNT]
    return found


def copied(error: BaseException) -> BaseException:
    """Return a copy of *error*: one object in many threads would mix their tracebacks."""
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001 - a class of others, which cannot be copied
        return error
