"""The connection that all messages between two members share."""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pparallel.runtime.links.dispatcher import READ, WRITE, Dispatcher
from pparallel.runtime.memory import Packed, Payload
from pparallel.runtime.memory.payload import VERSION
from pparallel.runtime.resources import explained, is_exhausted
from pparallel_ipc import messages
from pparallel_ipc.messages import dumps

logger = logging.getLogger(__name__)

_AT_ONCE = 32  #: packets that are read before others have their turn
_ALL = 1 << 20
_REMEMBERED = 256  #: large messages whose memory is given back should the other end die
_HOW = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

Taken = Callable[[Any, list[int]], None]  #: (packet, descriptors)
Ended = Callable[["Connection"], None]


class Connection:
    """A socket by which any thread sends, and of which the dispatcher reads.

    Sending never blocks: packets that the socket does not take at once wait here, and leave when
    it can take them. Their number is for the senders to limit.

    Attributes:
        calling: whether this end has connected.
        payload: carries large frames; it knows the other end's arena once both ends have let one
            another in.
        problem: why this end has ended it, if it has: a packet that came cannot be served.
    """

    def __init__(self, sock: socket.socket, dispatcher: Dispatcher, *, calling: bool) -> None:
        self.calling, self.problem = calling, ""
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, messages.SENDING)
        self.sock, self.dispatcher = sock, dispatcher
        self.payload = Payload((), 0)
        # Guards what waits, and has packets leave in the order in which they were sent.
        self._lock = threading.RLock()
        self._waiting: deque[tuple[bytes, Sequence[int]]] = deque()
        self._large: deque[Packed] = deque(maxlen=_REMEMBERED)
        self._is_open = self._is_dead = False
        self._taken: Taken | None = None
        self._ended: Ended | None = None

    def serve(self, taken: Taken, ended: Ended) -> None:
        """Pass packets on, and the end, and let packets out: the handshake is over."""
        self._taken, self._ended = taken, ended
        self.dispatcher.register(self.sock.fileno(), self._event)
        with self._lock:
            self._is_open = True
            self._flush()

    # -- sending ------------------------------------------------------------------------------

    def send(self, packet: object, fds: Sequence[int] = (), large: Packed | None = None) -> None:
        """Send a packet after those before it; closes *fds* when they have left.

        Args:
            packet: plain data.
            fds: descriptors that go along.
            large: frames in it whose memory is to be given back should the other end die.

        Raises:
            ResourceExhaustedError: the system has no room for it.
        """
        data = dumps(packet, VERSION)
        with self._lock:
            if self._is_dead:
                messages.close(fds)
                if large is not None:
                    self.payload.drop(large)
                return  # the end is reported where this connection is read
            if large is not None:
                self._large.append(large)
            if self._is_open and not self._waiting and not fds:
                try:
                    self.sock.send(data, _HOW)
                    return
                except BlockingIOError:
                    pass  # it waits
                except OSError as error:
                    if is_exhausted(error):
                        if large is not None:
                            self.payload.drop(self._large.pop())
                        raise explained(error, "the message") from error
                    self._is_dead = True
                    return
            self._waiting.append((data, fds))
            if len(self._waiting) == 1:
                self._flush()

    def is_empty(self) -> bool:
        """Return whether all has left."""
        return self._is_dead or not self._waiting

    def _flush(self) -> None:
        """Send what waits; called with the lock held."""
        while self._waiting and self._is_open and not self._is_dead:
            data, fds = self._waiting[0]
            try:
                if fds:
                    messages.send_with(self.sock, data, fds)
                else:
                    self.sock.send(data, _HOW)
            except BlockingIOError:
                self.dispatcher.watch(self.sock.fileno(), READ | WRITE)
                return
            except OSError as error:
                if is_exhausted(error):
                    self.fail(error)
                self._drop()
                return
            self._waiting.popleft()
            messages.close(fds)

    def _drop(self) -> None:
        self._is_dead = True
        for _, fds in self._waiting:
            messages.close(fds)
        self._waiting.clear()

    # -- receiving ----------------------------------------------------------------------------

    def drain(self) -> None:
        """Pass on what has come, and not the end any more; called by the dispatcher."""
        self._ended = None
        if self._taken is not None and self.sock.fileno() >= 0:
            self._read(_ALL)

    def close(self, *, peer_reads: bool = False) -> None:
        """Close it, and give memory back unless *peer_reads* it; called by the dispatcher."""
        number = self.sock.fileno()
        if number < 0:
            return
        self.dispatcher.unregister(number)
        with self._lock:
            self._drop()
            messages.disconnect(self.sock)
        while self._large and not peer_reads:
            self.payload.drop(self._large.popleft())

    def fail(self, error: BaseException) -> None:
        """End it, for a packet is lost that somebody at the other end waits for."""
        logger.error("A connection cannot be served", exc_info=error)
        self.problem = f"cannot be served: {type(error).__name__}: {error}"
        self.dispatcher.call(self._end)

    def _event(self, mask: int) -> None:
        if mask & WRITE:
            with self._lock:
                if self.sock.fileno() >= 0:
                    self.dispatcher.watch(self.sock.fileno(), READ)
                    self._flush()
        if mask & ~WRITE:
            self._read(_AT_ONCE)

    def _read(self, most: int) -> None:
        assert self._taken is not None
        while most and self.sock.fileno() >= 0:
            most -= 1
            try:
                data, fds = messages.receive(self.sock)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # reported once: what came before the end is there still
            except (OSError, MemoryError) as error:
                self.fail(error)
                return
            if not data:
                self._end()
                return
            try:
                self._taken(messages.loads(data), fds)
            except Exception as error:  # noqa: BLE001 - logged, and reported at the other end
                self.fail(error)
                return

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        self.dispatcher.unregister(self.sock.fileno())
        if ended is not None:
            ended(self)
