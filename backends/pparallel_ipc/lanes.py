"""Lanes: sockets on which a caller waits itself, each with a thread at the other end.

A call takes an idle lane, sends, and blocks until the answer is there. Nobody has to find out whose
answer it is, and no thread hands anything to another on either side. A handler that takes long
holds up its own lane only. A lane is made when all others are in use; one on which a call was given
up is closed, for its answer may come yet.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from pparallel.interfaces.transport import Frames, Handler
from pparallel.runtime import dedicated, poll_times
from pparallel.runtime.links import FAILED, attempt, outcome
from pparallel.runtime.polling import Polling
from pparallel.runtime.processes import forget_in_children, remember_in_children
from pparallel.runtime.resources import is_exhausted
from pparallel.runtime.shm import Parcels
from pparallel_ipc import messages
from pparallel_ipc.messages import PACKET, Packed, Sized

logger = logging.getLogger(__name__)

NOTHING: Sequence[int] = ()  #: descriptors that come with most messages
_WITH_FILES = b"F"  #: says that some come with the message that follows
_NO_FRAMES: Packed = ((), ())


class Lane:
    """The caller's end."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._send, self._receive = sock.send, _receiver(sock, self._wait)
        self._limit: float | None = None  # seconds
        self._milliseconds: int | None = None  # the same
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        self._poll, self._wait_on = poll.poll, partial(sock.recv, PACKET)
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
            self._limit = timeout
            self._milliseconds = None
            if timeout is not None and timeout <= poll_times.LONGEST:
                self._milliseconds = poll_times.milliseconds(max(timeout, 0.0))
        if fds:
            _send_with_files(self._sock, message, fds, timeout)
        else:
            try:
                self._send(message, socket.MSG_NOSIGNAL)
            except OSError as error:
                if not is_exhausted(error):
                    raise
                self._send_again(message, timeout)
        try:
            data = self._receive()
        except ConnectionResetError:  # told once: what came before the end is there still
            data = self._sock.recv(PACKET)
        except (OSError, MemoryError) as error:
            if not is_exhausted(error):
                raise
            data = messages.patiently(self._wait, timeout)
        return messages.receive_with(self._sock) if data == _WITH_FILES else (data, [])

    def _send_again(self, message: bytes, timeout: float | None) -> None:
        try:
            messages.patiently(partial(self._send, message, socket.MSG_NOSIGNAL), timeout)
        except OSError as error:
            if is_exhausted(error):
                raise BlockingIOError from error
            raise

    def _wait(self) -> bytes:
        # A limit that the socket keeps would begin anew after each signal.
        if self._milliseconds is not None and not self._poll(self._milliseconds):
            raise BlockingIOError
        return self._wait_on()

    def end(self) -> None:
        """Wake whoever waits on it; any thread may call this, and again."""
        _shut_down(self._sock)

    def close(self) -> None:
        """Close it; nobody may be waiting on it."""
        if (number := self._sock.fileno()) >= 0:
            remember_in_children(number)
            self._sock.close()


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
        self._receive = _receiver(sock, partial(sock.recv, PACKET))
        self._last: bytes | None = None  # the head of the last large answer
        self._answering = threading.RLock()
        self.thread = threading.Thread(target=self._serve, name=f"lane-of-{sender}", daemon=True)

    def end(self) -> None:
        """Have the thread end once it has handled what it is at; any thread may call this."""
        _shut_down(self._sock)

    def _serve(self) -> None:
        dedicated.mark_alone()
        try:
            while True:
                try:
                    data, fds = self._receive(), NOTHING
                except (OSError, MemoryError) as error:
                    if not is_exhausted(error):
                        return  # the caller is gone, or has given the call up
                    data, fds = messages.patiently(partial(self._sock.recv, PACKET)), NOTHING
                if data == _WITH_FILES:
                    data, fds = messages.patiently(partial(messages.receive_with, self._sock))
                if not data:
                    return
                try:
                    packed: Packed = messages.loads(data)
                    if packed[1] or fds or type(packed[0]) is not list:
                        self._handle(packed, fds)
                    else:
                        self._handle_small(packed[0])
                except BaseException as error:  # noqa: BLE001 - its caller must know, and the lane goes on
                    self._refuse(error)
                data, packed = b"", _NO_FRAMES
        except OSError:
            logger.debug("a lane has ended", exc_info=True)
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
            found.add_done_callback(self._reply)
            return
        status, reply = found
        del found
        data = messages.small(reply, status)
        if data is not None:
            self._last = None  # what went before has been read, or there would be no request
            try:
                self._sock.send(data, socket.MSG_NOSIGNAL)
            except OSError as error:
                if is_exhausted(error):
                    messages.patiently(partial(self._sock.send, data, socket.MSG_NOSIGNAL))
            return
        status, begun = messages.begin(status, reply, self._parcels)
        del reply
        self._send(*messages.finish(status, begun))

    def _handle(self, packed: Packed, fds: Sequence[int]) -> None:
        # A block stays leased while somebody refers to it, and one that is sent back travels as it
        # is if nobody does: no name here holds what came, or what goes.
        found = attempt(self._handler, self._sender, messages.unpack(packed, self._parcels, fds))
        if isinstance(found, Future):
            found.add_done_callback(self._reply)
            return
        status, frames = found
        del found
        status, begun = messages.begin(status, frames, self._parcels)
        del frames
        self._send(*messages.finish(status, begun))

    def _reply(self, done: Future[Frames]) -> None:
        try:
            status, begun = messages.begin(*outcome(done), self._parcels)
            self._send(*messages.finish(status, begun))
        except BaseException as error:  # noqa: BLE001 - its caller must know
            self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        logger.warning("A request of %s could not be answered", self._sender, exc_info=error)
        self._send(FAILED, messages.refused(error))

    def _send(self, status: int, sized: Sized) -> None:
        packed, _, fds = sized
        message = messages.patiently(partial(messages.dumps, (status, packed)))
        head = messages.droppable(sized)
        with self._answering:
            self._last = head
            try:
                if fds:
                    _send_with_files(self._sock, message, fds, None)
                else:
                    messages.patiently(partial(self._sock.send, message, socket.MSG_NOSIGNAL))
            except OSError:  # the caller is gone, or has given up; the thread sees that too
                if head is not None:
                    self._parcels.drop(head)
                    self._last = None
        messages.close(fds)


def _receiver(sock: socket.socket, wait: Callable[[], bytes]) -> Callable[[], bytes]:
    """Return what receives the next message, by *wait* if need be; it is empty at the end."""

    def look() -> bytes | None:
        try:
            return sock.recv(PACKET, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    return Polling(wait, look).receive


def _shut_down(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:  # the other end, or this one, is closed
        if error.errno not in (errno.ENOTCONN, errno.EBADF):
            raise


def _send_with_files(
    sock: socket.socket, message: bytes, fds: Sequence[int], timeout: float | None
) -> None:
    messages.patiently(partial(sock.send, _WITH_FILES, socket.MSG_NOSIGNAL), timeout)
    messages.patiently(partial(messages.send_with, sock, message, fds), timeout)
