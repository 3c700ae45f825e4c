"""Lanes: sockets on which a caller waits itself, each with a thread at the other end.

A call takes an idle lane, sends, and blocks until the answer is there. Nobody has to find out whose
answer it is, and no thread hands anything to another on either side. A handler that takes long
holds up its own lane only. A lane is made when all others are in use; one on which a call was given
up is closed, for its answer may come yet.
"""

from __future__ import annotations

import errno
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from pparallel.interfaces.transport import Frames, Handler
from pparallel.runtime import dedicated
from pparallel.runtime.links import attempt, outcome
from pparallel.runtime.polling import Polling
from pparallel.runtime.processes import forget_in_children, remember_in_children
from pparallel.runtime.shm import Parcels
from pparallel_ipc import messages
from pparallel_ipc.messages import PACKET, Packed, Sized

NOTHING: Sequence[int] = ()  #: descriptors that come with most messages
_WITH_FILES = b"F"  #: says that some come with the message that follows
_TIMEVAL = struct.Struct("@ll")
_AGAIN = 0.001  #: seconds after which descriptors are sent again where too many were on their way


class Lane:
    """The caller's end."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._send, self._receive = sock.send, _receiver(sock)
        self._limit: float | None = None  # seconds
        forget_in_children(sock.fileno())

    def exchange(
        self, message: bytes, fds: Sequence[int], timeout: float | None
    ) -> tuple[bytes, list[int]]:
        """Send a message and return the answer with its descriptors; it is empty at the end.

        Raises:
            BlockingIOError: *timeout* seconds have passed.
            OSError: the other end is gone.
        """
        if self._limit != timeout:
            self._set_limit(timeout)
        if fds:
            _send_with_files(self._sock, message, fds)
        else:
            self._send(message, socket.MSG_NOSIGNAL)
        try:
            data = self._receive()
        except ConnectionResetError:  # told once: what came before the end is there still
            data = self._sock.recv(PACKET)
        return messages.receive_with(self._sock) if data == _WITH_FILES else (data, [])

    def end(self) -> None:
        """Wake whoever waits on it; any thread may call this, and again."""
        _shut_down(self._sock)

    def close(self) -> None:
        """Close it; nobody may be waiting on it."""
        if (number := self._sock.fileno()) >= 0:
            remember_in_children(number)
            self._sock.close()

    def _set_limit(self, timeout: float | None) -> None:
        limit = 0.0 if timeout is None else max(timeout, 1e-6)
        seconds, rest = divmod(limit, 1.0)
        value = _TIMEVAL.pack(int(seconds), int(rest * 1e6))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._limit = timeout


def new_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a lane."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for each in ends:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, messages.SENDING)
    return ends


class ServedLane:
    """The end that answers, in a thread of its own, which handles one request at a time."""

    def __init__(
        self,
        sock: socket.socket,
        sender: str,
        handler: Handler,
        parcels: Parcels,
        ended: Callable[[ServedLane], None],
    ) -> None:
        sock.setblocking(True)
        forget_in_children(sock.fileno())
        self._sock = sock
        self._sender, self._handler, self._parcels = sender, handler, parcels
        self._ended = ended
        self._receive = _receiver(sock)
        self._last: bytes | None = None  # the head of the last large answer
        self._answering = threading.Lock()
        self.thread = threading.Thread(target=self._serve, name=f"lane-of-{sender}", daemon=True)

    def end(self) -> None:
        """Have the thread end once it has handled what it is at; any thread may call this."""
        _shut_down(self._sock)

    def _serve(self) -> None:
        dedicated.mark_alone()
        try:
            while True:
                data, fds = self._receive(), NOTHING
                if data == _WITH_FILES:
                    data, fds = messages.receive_with(self._sock)
                if not data:
                    return
                packed: Packed = messages.loads(data)
                if packed[1] or fds or type(packed[0]) is not list:
                    self._handle(packed, fds)
                else:
                    self._handle_small(packed[0])
                del data, packed
        except (OSError, RuntimeError, ValueError):
            # The caller is gone, or has given the call up and taken back what it had sent.
            return
        finally:
            self.close()

    def close(self) -> None:
        """Let go of what it has: called by its thread, or where that could not start."""
        with self._answering:
            remember_in_children(self._sock.fileno())
            self._sock.close()
            if self._last is not None:
                self._parcels.drop(self._last)
        self._ended(self)

    def _handle_small(self, frames: Frames) -> None:
        found = attempt(self._handler, self._sender, frames)
        if isinstance(found, Future):
            found.add_done_callback(lambda done: self._reply(*outcome(done)))
            return
        status, reply = found
        del found
        data = messages.small(reply, status)
        if data is not None:
            self._last = None  # what went before has been read, or there would be no request
            self._sock.send(data, socket.MSG_NOSIGNAL)
            return
        status, begun = messages.begin(status, reply, self._parcels)
        del reply
        self._send(*messages.finish(status, begun))

    def _handle(self, packed: Packed, fds: Sequence[int]) -> None:
        # A block stays leased while somebody refers to it, and one that is sent back travels as it
        # is if nobody does: no name here holds what came, or what goes.
        found = attempt(self._handler, self._sender, messages.unpack(packed, self._parcels, fds))
        if isinstance(found, Future):
            found.add_done_callback(lambda done: self._reply(*outcome(done)))
            return
        status, frames = found
        del found
        status, begun = messages.begin(status, frames, self._parcels)
        del frames
        self._send(*messages.finish(status, begun))

    def _reply(self, status: int, frames: Frames) -> None:
        status, begun = messages.begin(status, frames, self._parcels)
        self._send(*messages.finish(status, begun))

    def _send(self, status: int, sized: Sized) -> None:
        packed, _, fds = sized
        message = messages.dumps((status, packed))
        head = messages.droppable(sized)
        with self._answering:
            self._last = head
            try:
                if fds:
                    _send_with_files(self._sock, message, fds)
                else:
                    self._sock.send(message, socket.MSG_NOSIGNAL)
            except OSError:  # the caller is gone, or has given up; the thread sees that too
                if head is not None:
                    self._parcels.drop(head)
                    self._last = None
        messages.close(fds)


def _receiver(sock: socket.socket) -> Callable[[], bytes]:
    """Return what receives the next message; it is empty at the end."""

    def look() -> bytes | None:
        try:
            return sock.recv(PACKET, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    return Polling(partial(sock.recv, PACKET), look).receive


def _shut_down(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:  # the other end, or this one, is closed
        if error.errno not in (errno.ENOTCONN, errno.EBADF):
            raise


def _send_with_files(sock: socket.socket, message: bytes, fds: Sequence[int]) -> None:
    sock.send(_WITH_FILES, socket.MSG_NOSIGNAL)
    while True:
        try:
            return messages.send_with(sock, message, fds)
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
        time.sleep(_AGAIN)
