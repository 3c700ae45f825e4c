"""Lanes: sockets on which a caller waits itself, each with a thread at the other end.

A call takes an idle lane, sends, and blocks until the answer is there: no thread hands anything to
another on either side. A handler that takes long holds up its own lane only. A lane is made when
all others are in use; one on which a call was given up is closed, for its answer may come yet.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any

from pparallel.errors import ClosedError
from pparallel.interfaces.transport import Frames, Handler
from pparallel.runtime import dedicated
from pparallel.runtime.interrupts import is_interrupt, raise_interrupt
from pparallel.runtime.links import FAILED, OK, attempt, outcome, told
from pparallel.runtime.memory import Payload
from pparallel.runtime.polling import Polling
from pparallel.runtime.processes import close_private, private
from pparallel.runtime.resources import is_exhausted
from pparallel.runtime.timers import LONGEST_WAIT
from pparallel_ipc import messages
from pparallel_ipc.messages import PACKET, VERSION, Packed, Sized, are_small, dumps, loads

logger = logging.getLogger(__name__)

_NO_SIGNAL = int(socket.MSG_NOSIGNAL)  # to look up Python's own takes longer

Send = Callable[[int, Sized], None]  #: sends how a request ended, and the answer


class Lane:
    """The caller's end.

    Attributes:
        has_answered: whether the other end is known to be served.
    """

    def __init__(self, sock: socket.socket, timed: socket.socket) -> None:
        """Use *sock*, and *timed*, the same once more, for limits that signals do not put off."""
        self._sock, self._timed = sock, timed
        self._limit: float | None = None  # seconds
        self.has_answered = False
        self._send = sock.send
        self._receive = _receiver(sock, partial(self._timed.recv, PACKET))

    def exchange(self, message: bytes, timeout: float | None) -> bytes:
        """Send a message and return the answer; it is empty at the end.

        Raises:
            TimeoutError: *timeout* seconds have passed.
            ConnectionError: the other end is gone, and has not read the message.
        """
        if self._limit != timeout:
            is_none = timeout is None or timeout > LONGEST_WAIT
            self._timed.settimeout(None if is_none else max(timeout or 0.0, 0.0))
            self._limit = timeout
        try:
            try:
                self._send(message, _NO_SIGNAL)
            except OSError as error:
                if not is_exhausted(error) or is_interrupt(error):
                    raise
                _send(self._sock, message, timeout)
            return self._receive()
        except (OSError, MemoryError) as error:
            return self._receive_after(error, timeout)

    def _receive_after(self, error: BaseException, timeout: float | None) -> bytes:
        raise_interrupt(error)
        if isinstance(error, BlockingIOError):  # the limit is 0
            raise TimeoutError from None
        if is_exhausted(error):
            return messages.patiently(partial(self._timed.recv, PACKET), timeout)
        if isinstance(error, ConnectionResetError) and (data := self._timed.recv(PACKET)):
            return data  # what came before the end is there still
        raise error

    def end(self) -> None:
        """Wake whoever waits on it; any thread may call this, and again."""
        _shut_down(self._sock)

    def close(self) -> None:
        """Close it; nobody may be waiting on it."""
        close_private(self._sock, self._timed)

    def __del__(self) -> None:
        if hasattr(self, "_sock"):
            self.close()  # for who was interrupted where it would have been


def new_pair() -> tuple[socket.socket, ...]:
    """Return the caller's end of a lane, twice, and the other one."""

    def make() -> tuple[socket.socket, ...]:  # all of them, or none is private
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return ours, ours.dup(), theirs

    ends = private(make)
    for each in ends:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, messages.SENDING)
    return ends


class Answerer:
    """Has requests of one member handled, and sends the answers."""

    def __init__(self, peer: str, handler: Handler, payload: Payload) -> None:
        self.peer, self.handler, self.payload = peer, handler, payload
        self.keeps = False  # whether large answers are left to the peer as their lanes end

    def handle(self, packed: Packed, send: Send) -> None:
        """Have a request handled; *send* is called with how it ended and the answer, perhaps later.

        A block stays leased while somebody refers to it, and one that is sent back travels as it is
        if nobody does: no name here holds what came, or what goes.
        """
        try:
            found = attempt(self.handler, self.peer, messages.unpack(packed, self.payload))
            if isinstance(found, Future):
                found.add_done_callback(partial(self.reply, send))
                return
            status, *box = found
            del found
            send(*messages.pack_answer(status, box, self.payload))
        except BaseException as error:  # noqa: BLE001 - its caller must know
            self.refuse(send, error)

    def reply(self, send: Send, done: Future[Frames]) -> None:
        """Send the answer to a request whose future is done."""
        try:
            status, *box = outcome(done)
            send(*messages.pack_answer(status, box, self.payload))
        except BaseException as error:  # noqa: BLE001 - its caller must know
            self.refuse(send, error)

    def refuse(self, send: Send, error: BaseException) -> None:
        """Answer that this was not possible."""
        if isinstance(error, ClosedError):  # an arena's: what a handler raises is an answer
            logger.debug("A request of %s is not answered: this member closes", self.peer)
        else:
            logger.warning("A request of %s could not be answered", self.peer, exc_info=error)
        send(FAILED, messages.refused(error))


class ServedLane:
    """The end that answers, in a thread of its own, which handles one request at a time."""

    def __init__(
        self, sock: socket.socket, answerer: Answerer, ended: Callable[[ServedLane], None]
    ) -> None:
        sock.setblocking(True)
        self._sock, self._answerer, self._ended = sock, answerer, ended
        self._receive = _receiver(sock, partial(sock.recv, PACKET))
        self._last: Any = None  # where the last large answer lies
        self._answering = threading.RLock()
        self.thread = threading.Thread(
            target=self._serve, name=f"lane-of-{answerer.peer}", daemon=True
        )

    def end(self) -> None:
        """Have the thread end once it has handled what it is at; any thread may call this."""
        _shut_down(self._sock)

    def close(self) -> None:
        """Let go of what it has: called by its thread, or where that could not start."""
        with self._answering:
            close_private(self._sock)
            if self._last is not None and not self._answerer.keeps:
                self._answerer.payload.drop(self._last)
        self._ended(self)

    def _serve(self) -> None:
        dedicated.mark_alone()
        try:
            while True:
                try:
                    data = self._receive()
                except (OSError, MemoryError) as error:
                    if not is_exhausted(error):
                        raise
                    data = messages.patiently(partial(self._sock.recv, PACKET))
                if not data:
                    return
                try:
                    frames, has_places, until = loads(data)
                    if until < monotonic() and self._is_given_up():
                        pass  # its caller's next request may have been first
                    elif has_places:
                        self._answerer.handle((frames, True), self._send)
                    else:
                        self._handle_small(frames)
                except BaseException as error:  # noqa: BLE001 - its caller must know, and the lane goes on
                    self._answerer.refuse(self._send, error)
                data, frames = b"", ()
        except OSError:  # the caller is gone, or has given the call up
            logger.debug("a lane has ended", exc_info=True)
        finally:
            self.close()

    def _is_given_up(self) -> bool:
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def _handle_small(self, frames: Frames) -> None:
        answerer, status = self._answerer, OK
        try:  # as attempt(), a call more than which is felt here
            reply = answerer.handler(answerer.peer, frames)
        except Exception as error:  # noqa: BLE001 - its caller must know
            status, reply = FAILED, told(error)
        if isinstance(reply, Future):
            reply.add_done_callback(partial(answerer.reply, self._send))
            return
        if not are_small(reply):
            box = [reply]
            del reply
            self._send(*messages.pack_answer(status, box, answerer.payload))
            return
        self._last = None  # what went before has been read, or there would be no request
        data = dumps((status, (reply, False)), VERSION)
        try:
            self._sock.send(data, _NO_SIGNAL)
        except OSError as error:
            if is_exhausted(error):
                _send(self._sock, data)

    def _send(self, status: int, sized: Sized) -> None:
        packed, _ = sized
        message = messages.patiently(partial(dumps, (status, packed), VERSION))
        head = messages.droppable(sized)
        with self._answering:
            self._last = head
            try:
                _send(self._sock, message)
            except OSError:  # the caller is gone, or has given up; the thread sees that too
                if head is not None:
                    self._answerer.payload.drop(head)
                    self._last = None


def _receiver(sock: socket.socket, wait: Callable[[], bytes]) -> Callable[[], bytes]:
    """Return what receives the next message, by *wait* if need be; it is empty at the end."""

    def look() -> bytes | None:
        try:
            return sock.recv(PACKET, socket.MSG_DONTWAIT)
        except BlockingIOError as error:
            raise_interrupt(error)
            return None

    return Polling(wait, look).receive


def _shut_down(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:  # the other end, or this one, is closed
        if error.errno not in (errno.ENOTCONN, errno.EBADF):
            raise


def _send(sock: socket.socket, message: bytes, timeout: float | None = None) -> None:
    """Send a message, also where there is no memory for it at once."""
    messages.patiently(partial(sock.send, message, socket.MSG_NOSIGNAL), timeout)
