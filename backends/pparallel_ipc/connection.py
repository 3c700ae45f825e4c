"""One socket to one other member, in the hub's hands: the messages that leave by it and come."""

from __future__ import annotations

import logging
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

from pparallel.runtime.interrupts import is_interrupt
from pparallel.runtime.processes import close_private
from pparallel.runtime.resources import is_exhausted
from pparallel.runtime.timers import milliseconds
from pparallel.runtime.turn import Turn
from pparallel_ipc import messages
from pparallel_ipc.hub import NOT_SERVED, READ, WRITE, Hub
from pparallel_ipc.messages import VERSION, Received, dumps

logger = logging.getLogger(__name__)

_TOGETHER = 16  #: entries that are not held back any longer
_AT_ONCE = 32  #: packets that are read before others have their turn
_ALL = 1 << 20
_AGAIN = 0.001  #: seconds after which what found no memory or descriptors is tried again
_MOST = 1000  #: entries that are looked at for a packet
_ALONE = -1  #: instead of a size: a message by itself
_HOW = (int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL),)  #: as map() takes it
_END: Received = (b"", [], 0, None)

Entry = tuple[Any, int, Sequence[int]]  #: a message, its size, descriptors
Packet = tuple[bytes, Sequence[int], int]  #: with its descriptors and the number of its entries
Taken = Callable[[Any, list[int]], None]  #: (message, descriptors)
Ended = Callable[["Connection"], None]


class Post:
    """Sends entries and single messages through one socket, in order, many in a packet.

    Sending never blocks, and any thread may. What the socket does not take at once waits here, and
    leaves when it can. How much that may become is for the callers to limit. One thread sends at a
    time, and its signals' handlers; others only add to what it sends, and wait for no lock.
    """

    def __init__(self, sock: socket.socket, hub: Hub) -> None:
        self._sock, self._hub = sock, hub
        self._number = sock.fileno()
        self._turn = Turn()  # to send
        self._entries: list[Entry] = []  # until they are sent
        self.append = self._entries.append  # followed by added()
        self._packet: Packet | None = None  # the next one
        self._sent: list[int] = []  # not empty: the packet has left
        self._waits = True  # until it is open, and later for the hub to say that it may go on
        self._is_dead = False

    def open(self) -> None:
        """Let messages out from now on."""
        self._waits = False
        self.flush()

    def added(self, *, hold: bool) -> None:
        """Send what has been appended: at once, or with the next ones if it may be held back."""
        if not hold or len(self._entries) >= _TOGETHER or self._turn.owner == get_ident():
            self.flush()  # who has the turn is a signal's handler, for which the hub cannot send
        elif self.flush not in self._hub.held:
            self._hub.hold(self.flush)

    def say(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send a message by itself, after what was put before; closes *fds*."""
        self._entries.append((message, _ALONE, fds))
        self.flush()

    def flush(self) -> None:
        """Send what has been held back."""
        while self._entries and not self._waits:
            if not self._turn.take(self._send):  # a signal's handler may raise where it is sent
                self._hub.hold(self.flush)
                return

    def is_empty(self) -> bool:
        """Return whether all has left."""
        return self._is_dead or not self._entries

    def can_write(self) -> None:
        """Go on, for there is room: called by the hub."""
        if not self._is_dead:
            self._hub.change(self._number, remove=WRITE)  # first: who finds none again adds it
            self._waits = False
        self.flush()

    def die(self) -> None:
        """Send nothing any more, and let go of what waits."""
        self._is_dead, self._waits = True, False
        self._turn.take_soon(self._drop)  # nobody uses the socket afterwards

    def _send(self) -> None:
        """Send what there is; a signal's handler in the midst of it may do so, too."""
        try:
            while self._entries and not self._is_dead:
                self._send_one()
        except (OSError, MemoryError) as error:
            if is_interrupt(error):
                self._hub.hold(self.flush)
                raise
            if not self._has_to_wait(error):
                self._is_dead = True  # the end will be seen where this connection is read
        if self._is_dead:
            self._drop()

    def _send_one(self) -> None:
        packet = self._packet
        if packet is None:
            entries = self._entries[:_MOST]
            if not entries:
                return
            packet = _packed(entries)
            now = self._entries
            if self._packet is not None or not now or now[0] is not entries[0]:
                return
            self._packet = packet
        data, fds, count = packet
        send = map(self._sock.send, (data,), _HOW)
        if fds:
            send = map(self._sock.sendmsg, ((data,),), (messages.rights(fds),), _HOW)
        note = self._sent.extend
        if self._packet is packet and not self._sent:
            note(send)  # in one go, and without a call before it since it was found not to be sent
        if self._packet is packet:
            del self._entries[:count]  # these three without a call in between
            self._packet = None
            del self._sent[:]
            if fds:
                messages.close(fds)

    def _has_to_wait(self, error: Exception) -> bool:
        is_full = isinstance(error, BlockingIOError)
        if not is_full and not is_exhausted(error):
            return False
        self._waits = True
        if is_full:
            self._hub.change(self._number, add=WRITE)
        else:
            self._hub.later(_AGAIN, self.can_write)
        return True

    def _drop(self) -> None:
        entries = self._entries[:]
        del self._entries[: len(entries)]
        self._packet = None
        for _, _, fds in entries:
            messages.close(fds)


class Connection:
    """A socket that the hub reads; closed by it.

    Attributes:
        calling: whether it was made by this end, and answers come in by it.
        problem: why this end has ended it, if it has: what came cannot be served.
    """

    def __init__(self, sock: socket.socket, hub: Hub, *, calling: bool) -> None:
        self.calling = calling
        self.problem = ""
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, messages.SENDING)
        self.sock, self.hub = sock, hub
        self.post = Post(sock, hub)
        self._turn = Turn()  # to read; who does may close it
        self._poll = _poll(sock.fileno())  # for who reads in place of the hub
        self._received: deque[Received] = deque()  # and not decoded yet
        self._message: tuple[Any, list[int]] | None = None  # decoded, and not passed on yet
        self._taken: Taken | None = None
        self._ended: Ended | None = None

    def serve(self, taken: Taken, ended: Ended) -> None:
        """Pass messages on, and the end, from now on; the introductions are over."""
        self._taken, self._ended = taken, ended
        self.hub.unregister(self.sock.fileno())
        self.hub.register(self.sock.fileno(), self._event)

    def receive(self, is_done: Callable[[], bool], timeout: float) -> None:
        """Read in the calling thread until *is_done*, for *timeout* seconds at most.

        What comes is passed on in this thread, as long as it is an answer.
        """
        if self._taken is None:
            return
        until = time.monotonic() + timeout
        # One that is read here already waits by its own poll, which serves one wait at a time.
        poll = _poll(self.sock.fileno()) if self.is_read_here() else self._poll
        self._turn.take(self._receive, poll, is_done, until)

    def is_read_here(self) -> bool:
        """Return whether the calling thread reads; a signal's handler may find that."""
        return self._turn.owner == get_ident()

    def take_back(self) -> None:
        """Have the hub read again, and whoever does now leave off soon."""
        self.hub.take_back(self.sock.fileno())

    def drain(self) -> None:
        """Pass on what has come, and not be told of the end any more."""
        self._ended = None
        if self._taken is not None and self.sock.fileno() >= 0:
            self._turn.take_soon(self._read, _ALL)

    def close(self) -> None:
        """Close it; safe to call again."""
        self._turn.take_soon(self._close)

    def _close(self) -> None:
        number = self.sock.fileno()
        if number >= 0:
            self.post.die()
            self.hub.unregister(number)
            close_private(self.sock)

    def _receive(self, poll: select.poll, is_done: Callable[[], bool], until: float) -> None:
        number = self.sock.fileno()
        if number < 0:
            return
        self.hub.lend(number)
        while self._pass_on(by_hub=False):
            if is_done():  # before the next wait: what has just come may be all that is missing
                return
            if not self._take_in():
                left = until - time.monotonic()
                if left <= 0 or not poll.poll(milliseconds(left)):
                    break
        if self._message is not None:  # for the hub
            self.hub.later(0.0, self._look)
        self.hub.take_back(number)  # last: where a signal's handler raises, it looks by itself

    def _event(self, said: int) -> None:
        try:
            if said & WRITE:
                self.post.can_write()
            if said & ~WRITE and not self._turn.take(self._read, _AT_ONCE):
                self.hub.lend(self.sock.fileno())  # somebody else reads; look again a little later
        except MemoryError:
            logger.warning("There is no memory for what has come; it is tried again")
            time.sleep(_AGAIN)
            self.hub.later(0.0, self._look)
        except Exception as error:  # noqa: BLE001 - logged, and told to the member of the other end
            self._fail(error)

    def _look(self) -> None:
        if self.sock.fileno() >= 0:
            self._event(READ)

    def _read(self, most: int) -> None:
        while self._pass_on(by_hub=True) and most and self._take_in():
            most -= 1

    def _take_in(self) -> bool:
        """Receive the next packet; return False if there is none, or no memory for it just now."""
        while True:
            try:
                # In one go: no signal's handler runs in between.
                self._received.extend(map(self.sock.recvmsg, *messages.EACH))
            except (OSError, MemoryError) as error:
                if is_interrupt(error):
                    raise
                if isinstance(error, BlockingIOError | InterruptedError):
                    return False
                if isinstance(error, ConnectionResetError):
                    continue  # told once: what came before the end is there still
                if is_exhausted(error):
                    time.sleep(_AGAIN)
                    return False
                self._received.append(_END)
            return True

    def _pass_on(self, *, by_hub: bool) -> bool:
        """Pass on what has been received; return whether all of it was, and more may come.

        What stays, as it is for the hub or what was called has raised, is passed on the next time.
        A signal's handler may do the same in the midst of it.
        """
        received = self._received
        while received or self._message is not None:
            message = self._message
            if message is None:
                if not received:  # here, as a handler may run before a loop goes on
                    continue
                packet = received[0]
                data, fds = messages.parts(packet)
                message = messages.loads(data) if data else None, fds
                if not received or received[0] is not packet:
                    continue
                self._message = message
                del received[0]  # without a call in between
            if not by_hub and (message[0] is None or message[0][0] != messages.MANY):
                return False
            if message[0] is None:
                self._end()
                return False
            assert self._taken is not None
            self._taken(*message)
            if self._message is message:
                self._message = None
        return True

    def _fail(self, error: Exception) -> None:
        """End it, for who waits at the other end would do so for ever."""
        logger.error(NOT_SERVED, exc_info=error)
        if self._message is not None:
            self._message = None
        elif self._received:
            self._received.popleft()
        self.problem = f"cannot be served: {type(error).__name__}: {error}"
        self._end()

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        self.hub.unregister(self.sock.fileno())
        if ended is not None:
            ended(self)


def _packed(entries: list[Entry]) -> Packet:
    """Return the first of *entries* as a packet."""
    count, total = 0, 0
    first, size, fds = entries[0]
    if size == _ALONE or fds or len(entries) == 1:  # descriptors belong to one entry alone
        data = dumps(first if size == _ALONE else (messages.MANY, [first]), VERSION)
        return data, fds, 1
    for _, size, fds in entries:
        total += size + messages.HEADER
        if count and (size == _ALONE or fds or total > messages.LONGEST):
            break
        count += 1
    return dumps((messages.MANY, [each[0] for each in entries[:count]]), VERSION), (), count


def _poll(number: int) -> select.poll:
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return poll
