"""Calls that leave together.

To carry a call that nobody waits for costs both members, and the transport, more than most
functions take. So quick calls with little data wait for one another while others are under way: up
to 32 of one thread to one member are one request, and their results one reply::

    request: (names or numbers of functions, each with for how many of the next calls), arguments of
        each call, its named arguments
    reply: (which have ended with small plain data, that data, (which, how many frames) for others),
        and those frames

The reply comes when all have ended. Where that takes longer it tells of those that have, and the
caller asks for the rest; see :mod:`pparallel.runtime.rpc.batch_run`.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import groupby
from threading import RLock, get_ident
from types import FunctionType
from typing import Any, Protocol

from pparallel.errors import CallTimeoutError, ResourceExhaustedError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.lean_future import LeanFuture
from pparallel.runtime.pending import fail, settle
from pparallel.runtime.rpc import wire
from pparallel.runtime.rpc.closures import Told
from pparallel.runtime.rpc.future import RpcFuture
from pparallel.runtime.rpc.quick import Name, Quick
from pparallel.runtime.rpc.requests import Requests
from pparallel.runtime.rpc.window import Window
from pparallel.runtime.ticker import Ticker

TOGETHER = 32  #: calls in a batch, at the most
SMALL = 512  #: bytes of the arguments of a call, at the most
HELD = 0.001  #: seconds after which a batch leaves as it is
LARGE = 2**16  #: bytes of results from which on others come with the next reply

_ROOM = TOGETHER * (SMALL + Window.OVERHEAD) - Window.OVERHEAD  # of a batch in the window

#: Future, function, its name, arguments, named arguments: a tuple, for there are many.
Call = tuple[RpcFuture[Any], FunctionType, Name | Told, Sequence[Any], Mapping[str, Any] | None]


class Sender(Protocol):
    """Sends requests: a transport."""

    def send(self, to: str, frames: Frames, timeout: float | None, future: Future[Frames]) -> None:
        """Send a request, whose reply completes *future*."""


class Batches:
    """The batches of one member.

    Attributes:
        held: those that have not left, by member and calling thread. Whoever sends anything else
            calls :meth:`flush` first, and who waits :meth:`flush_all`.
    """

    def __init__(
        self, sender: Sender, requests: Requests, quick: Quick, window: Window, name: str
    ) -> None:
        self.sender, self.requests, self.quick, self.window = sender, requests, quick, window
        self.held: dict[tuple[str, int], _Batch] = {}
        self.under_way: defaultdict[str, set[_Batch]] = defaultdict(set)  # by member
        self.ticker = Ticker(f"{name}-batches", HELD)
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
            room = self.window.take(to, _ROOM, timeout)
            try:
                batch = _Batch(self, key, timeout, *room)
                self.ticker.add(batch.tick)
                self.held[key] = batch
            except ResourceExhaustedError:  # no thread can be started: nothing would send it
                self.window.give_back(to, room[0])
                return False
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

    def flush_all(self) -> None:
        """Send everything."""
        for batch in list(self.held.values()):
            batch.leave()

    def refuse(self) -> None:
        """Take nothing more."""
        self._is_closed = True

    def close(self) -> None:
        """Fail what has not left, for the transport is closed; safe to call again."""
        self.refuse()
        self.flush_all()
        self.ticker.close()


class _Batch:
    """Calls of one thread to one member.

    Attributes:
        timeout: of each.
        calls: which that thread adds to without a lock: first it adds one, then it looks whether
            the batch has left. Whoever sends the batch does it the other way round.
    """

    def __init__(
        self,
        batches: Batches,
        key: tuple[str, int],
        timeout: float | None,
        taken: int,
        left: float | None,
    ) -> None:
        self._batches, self._key, self._taken, self._left = batches, key, taken, left
        self._to = key[0]
        self._lock = RLock()  # a transport may complete a future inside, and call what follows
        self._since = time.monotonic()  # when it began, and later when it left
        self.timeout = timeout
        self.calls: list[Call] = []
        self._has_left = False  # or is about to
        self._is_sent = False
        self._number = -1  # of its request, when it has left
        self._sent: Sequence[Call] = ()  # what it has left with
        self._futures: dict[int, RpcFuture[Any]] = {}  # of those that have not ended

    def add(self, call: Call) -> bool:
        """Take a call in; return False if it must go with another batch."""
        self.calls.append(call)
        if not self._has_left:
            return True
        with self._lock:  # until it is known what it has left with
            if any(each is call for each in self._sent):
                return True
            # It may be just leaving, in this thread, which a signal has interrupted.
            del self.calls[-1]
            return False

    def tick(self, now: float) -> None:
        """Leave, if it is time; or do what a signal's handler that raised has kept from being done.

        A request that is sent once more has its number still, and is run once.
        """
        if not self._has_left and now - self._since >= HELD:
            self.leave()
        elif self._has_left and self._lock.acquire(blocking=False):
            try:
                self._go()
            finally:
                self._lock.release()

    def leave(self) -> Exception | None:
        """Be sent, if it is not yet; return why that failed, and so the calls."""
        with self._lock:
            if self._has_left:
                return None
            self._has_left = True
            return self._go()

    def _go(self) -> Exception | None:
        """Be sent; where a signal's handler raises, the ticker calls this again."""
        batches, requests, error = self._batches, self._batches.requests, None
        if not self._is_sent:
            if self._number < 0:
                self._number = requests.next_number(self._to)
            if batches.held.get(self._key) is self:
                del batches.held[self._key]
            self._sent = calls = self._sent or tuple(self.calls)
            if calls:
                batches.under_way[self._to].add(self)
                self._since = time.monotonic()
                futures, _, names, args, kwargs = zip(*calls, strict=True)
                self._futures = self._futures or dict(enumerate(futures))
                request = (_counted(names), args, kwargs)
                encode = partial(requests.batch, self._key[1], self._number, request, self._left)
                error = self._send(encode, self._left)
            else:  # whoever began it has not come to add its call, and will begin another
                self._give_back()
            self._is_sent = True
        batches.ticker.remove(self.tick)
        return error

    def _give_back(self) -> None:
        taken, self._taken = self._taken, 0
        self._batches.window.give_back(self._to, taken)

    def _send(self, encode: Callable[[], Frames], timeout: float | None) -> Exception | None:
        """Send a request; what fails, for want of memory too, ends the calls."""
        reply: LeanFuture[Frames] = LeanFuture()
        reply.add_done_callback(self._replied)
        try:
            self._batches.sender.send(self._to, encode(), timeout, reply)
        except Exception as error:  # noqa: BLE001 - goes to those who wait
            fail(reply, error)
            return error
        return None

    def _replied(self, reply: Future[Frames]) -> None:
        """Take results in: called by the transport, once for each request."""
        self._is_sent = True
        self._batches.under_way[self._to].discard(self)
        try:
            self._take(reply)
        except Exception as error:  # noqa: BLE001 - goes to those who wait
            self._fail(error)
        except BaseException:  # an interrupt of the thread that receives: results are not its own
            self._take(reply)
            raise
        finally:
            if self._futures:
                self._ask_again()
            else:
                self._give_back()

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
        for index, value in zip(indices, values, strict=True):
            if (future := futures.get(index)) is not None:  # else it has been taken in before
                future.give(value)
                del futures[index]
        at = 2
        for index, count in framed:
            if index in futures:
                settle(futures[index], frames[at : at + count])
                del futures[index]
            at += count

    def _fail(self, error: BaseException) -> None:
        for future in self._futures.values():
            fail(future, _another(error))  # one object in many threads would mix their tracebacks
        self._futures.clear()

    def _ask_again(self) -> None:
        """Ask for the results that are not there yet."""
        batches = self._batches
        left = None
        if self._left is not None:
            left = max(self._since + self._left - time.monotonic(), 0.001)
        self._send(partial(batches.requests.rest, self._to, self._number), left)


def _another(error: BaseException) -> BaseException:
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001 - a class of others, which cannot be copied
        return error


def _counted(names: Sequence[Name | Told]) -> list[tuple[Name | Told, int]]:
    """Return each name with how often it comes before another does."""
    if names.count(names[0]) == len(names):  # as it is most of the time
        return [(names[0], len(names))]
    return [(name, len(list(each))) for name, each in groupby(names)]
