"""The way to one other member: this member's requests go out, and the answers come back."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import Any
from weakref import WeakSet

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.future import fail, settle
from pparallel.runtime.interrupts import is_interrupt, raise_interrupt
from pparallel.runtime.links import OK, failure
from pparallel.runtime.memory import Payload
from pparallel.runtime.processes import close_private
from pparallel.runtime.resources import is_exhausted
from pparallel_ipc import messages
from pparallel_ipc.connection import Connection
from pparallel_ipc.lanes import Lane, new_pair
from pparallel_ipc.messages import VERSION, Packed, are_small, dumps, loads

_KEPT = 8  #: idle lanes that are kept
_LENT = 0.005  #: seconds for which a thread that waits receives; what takes longer is not quick
_LITTLE = 256  #: bytes of a request that may wait for others
_DROPPED = "has dropped the call; its log says why"
_FEW = 2  #: requests without an answer up to which the next is not held back


class Line:
    """The calling end of a connection. What it sends waits until the peer has let this member in.

    A call from a thread that has nothing else on its way takes a lane. All other requests share the
    connection: they keep their order, and leave many at a time.

    Attributes:
        payload: what carries large data to and from the peer.
    """

    def __init__(
        self, peer: str, connection: Connection, payload: Payload, most_lanes: int
    ) -> None:
        self._peer, self._most_lanes = peer, most_lanes
        self._connection, self._post, self.payload = connection, connection.post, payload
        self._waiters: list[object] = []  # threads that wait for an answer by it
        self._lock = threading.RLock()  # a signal's handler may ask in the midst of it
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Frames]] = {}  # until answered, given up or not
        self._large: dict[int, Any] = {}  # what the peer may not have read
        self._latest: dict[int, int] = {}  # by thread: its last request that shared the connection
        self._idle: list[Lane] = []
        self._lanes: WeakSet[Lane] = WeakSet()  # one that an interrupt has lost closes itself
        self._is_ended = self._drops = False

    def close(self, *, peer_reads: bool = False) -> None:
        """Wake whoever waits in a lane, and let go of what was sent, unless *peer_reads* it."""
        with self._lock:
            self._is_ended, self._drops = True, not peer_reads
            for each in list(self._lanes):
                each.end()
            idle, self._idle = self._idle, []
            heads = [] if peer_reads else list(self._large.values())
            self._large.clear()
            self._lanes.difference_update(idle)
        for each in idle:
            each.close()
        for head in heads:
            self.payload.drop(head)

    def request(self, frames: Frames, future: Future[Frames]) -> None:
        """Send a request whose answer completes *future*."""
        try:
            sized = packed, size = messages.pack(frames, self.payload)
        except Exception as error:  # noqa: BLE001 - the future tells who asked
            raise_interrupt(error)
            fail(future, error)
            return
        number = self._latest[get_ident()] = next(self._numbers)
        if (head := messages.droppable(sized)) is not None:
            self._large[number] = head
        hold = len(self._waiting) >= _FEW and size < _LITTLE
        entry, append = ((number, packed), size, ()), self._post.append
        self._waiting[number] = future
        append(entry)  # without a call in between: it is waited for if it is to leave
        self._post.added(hold=hold)

    def call(self, frames: Frames, timeout: float | None, until: float) -> Frames | None:
        """Send a request in a lane and return its answer; ``None``: no lane can be taken.

        The limit of *timeout* seconds, if any, is over at *until*, by ``time.monotonic``.

        Raises:
            CallTimeoutError: it did not come within *timeout* seconds.
            RemoteError: the peer's handler failed.
            EOFError: the connection has ended.
        """
        if self._waiting and self._latest.get(get_ident()) in self._waiting:
            return None  # this would overtake it
        try:
            lane = self._idle[-1]  # the one used last: what it needs is in the caches
            del self._idle[-1]  # without a call in between
        except IndexError:
            made = self._new_lane()
            if made is None:
                return None
            lane = made
        keeps = False
        try:
            found = self._exchange(lane, frames, timeout, until)
            if found is None:
                return None
            status, answer = loads(found)
            if status == OK and not answer[1]:
                reply: Frames = answer[0]
            else:  # before the lane may be closed: then the other end takes back what is unread
                reply = self._unpacked(answer)
            keeps = not self._is_ended and len(self._idle) < _KEPT
        except TimeoutError as error:
            raise_interrupt(error)
            raise CallTimeoutError(f"a request to {self._peer!r}", timeout or 0.0) from None
        finally:
            if keeps:
                self._idle.append(lane)
            else:
                with self._lock:
                    self._lanes.discard(lane)
                lane.close()
        if status != OK:
            raise failure(self._peer, reply)
        return reply

    def _exchange(
        self, lane: Lane, frames: Frames, timeout: float | None, until: float
    ) -> bytes | None:
        """Return the answer; ``None``: the peer has not read the request."""
        head = None
        try:
            if are_small(frames):
                message = dumps((frames, False, until), VERSION)
            else:
                sized = packed, _ = messages.pack(frames, self.payload)
                message, head = dumps((*packed, until), VERSION), messages.droppable(sized)
            answer = lane.exchange(message, timeout)
            if not answer:
                raise EOFError
            head, lane.has_answered = None, True
        except ConnectionError as error:
            raise_interrupt(error)
            if lane.has_answered:  # it is served: that it has not read this one is not certain
                raise EOFError from None
            if head is not None:
                self.payload.drop(head)
                head = None
            return None
        finally:
            if head is not None:
                self._keep(head)
        return answer

    def _keep(self, head: Any) -> None:
        """Keep what the peer may read yet, to drop it if that ends before; or has ended."""
        with self._lock, suppress(ClosedError):  # this member has ended, too
            if self._drops:
                self.payload.drop(head)
            else:
                self._large[next(self._numbers)] = head

    @contextmanager
    def awaiting(self, is_done: Callable[[], bool], timeout: float | None) -> Iterator[None]:
        """Say that this thread waits inside for an answer that does not come by a lane.

        One that waits alone receives what comes, for a while; where several wait, the hub does.
        """
        waiters, me = self._waiters, object()
        try:
            waiters.append(me)
            connection = self._connection
            if connection.is_read_here():  # a signal's handler waits: nobody else reads
                connection.receive(is_done, math.inf if timeout is None else timeout)
            elif len(waiters) == 1:
                longest = _LENT if timeout is None else min(timeout, _LENT)
                connection.receive(lambda: is_done() or len(waiters) > 1, longest)
            if len(waiters) > 1:
                connection.take_back()
            yield
        finally:
            if me in waiters:
                waiters.remove(me)

    def take(self, entries: list[Any]) -> None:
        """Take answers in, and out of *entries*: called by who receives.

        Who was interrupted by a signal's handler may find that it has gone on here.
        """
        while True:
            if not entries:  # here, as a handler may run before a loop goes on
                break
            entry = entries[0]
            number, status, packed = entry
            frames, has_places = packed
            future = self._waiting.get(number)
            is_plain = not has_places
            if not entries or entries[0] is not entry:
                continue
            if not is_plain:
                del entries[0]  # it can be unpacked once; without a call in between
                self._unpack_answer(future, status, packed)
            elif future is not None:
                self._complete(future, status, frames)
            self._waiting.pop(number, None)
            self._large.pop(number, None)
            if entries and entries[0] is entry:
                del entries[0]
        self._post.flush()

    def _unpack_answer(self, future: Future[Frames] | None, status: int, packed: Packed) -> None:
        try:
            frames = self._unpacked(packed)
            if future is not None:
                self._complete(future, status, frames)
        except BaseException as error:
            is_own = isinstance(error, OSError | RuntimeError | MemoryError | EOFError)
            is_own = is_own and not is_interrupt(error)
            told = error if is_own else RuntimeError(f"the answer was lost: {error!r}")
            if future is not None:
                is_gone = isinstance(error, EOFError)
                fail(future, PeerLostError(self._peer, _DROPPED) if is_gone else told)
            if not is_own:
                raise

    def _unpacked(self, packed: Packed) -> Frames:
        """Return the frames of an answer; EOFError: the peer has ended, or taken them back."""
        try:
            return messages.unpack(packed, self.payload)
        except RuntimeError as error:
            if is_interrupt(error) or isinstance(error, RecursionError):
                raise
            raise EOFError from error

    def _complete(self, future: Future[Frames], status: int, frames: Frames) -> None:
        if status == OK:
            settle(future, frames)
        else:
            fail(future, failure(self._peer, frames))

    def _new_lane(self) -> Lane | None:
        if len(self._lanes) >= self._most_lanes:
            return None
        try:
            *ours, theirs = new_pair()
            lane = Lane(*ours)
        except OSError as error:
            if is_exhausted(error):
                return None  # the connection is there already
            raise
        with self._lock:
            is_wanted = not self._is_ended and len(self._lanes) < self._most_lanes
            if is_wanted:
                self._lanes.add(lane)
        if is_wanted:
            self._post.say((messages.LANE,), [theirs.detach()])
            return lane
        close_private(theirs)
        lane.close()
        if self._is_ended:
            raise EOFError
        return None
