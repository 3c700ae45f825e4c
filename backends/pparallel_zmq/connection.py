"""The way to another member: messages leave by it, and its end is seen here."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import zmq

from pparallel_zmq.address import Address
from pparallel_zmq.messages import MORE_BACK, Parts
from pparallel_zmq.sockets import EVENTS, MORE, NOW, POLLIN, POLLOUT, RETURN, Sockets

if TYPE_CHECKING:
    from pparallel_zmq.transport import ZmqTransport

logger = logging.getLogger(__name__)

_FAILED = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_WATCHED = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | _FAILED
)


class Connection:
    """A connection to one member, by which messages to it leave.

    A small message leaves by the thread that sends it. A large one, and what finds no room, waits
    for the thread that receives, and what is sent later behind it.

    Attributes:
        to: the member's name.
        is_closed: whether it is of no use any more.
        was_up: whether it has ever been connected to who was meant.
        trouble: what went wrong with it last.
    """

    def __init__(
        self,
        to: str,
        address: Address,
        sockets: Sockets,
        owner: ZmqTransport,
        first: Sequence[Parts],
    ) -> None:
        """Connect.

        Args:
            to: the member's name.
            address: where it is met.
            sockets: makes those that are needed.
            owner: learns what becomes of the connection.
            first: the first message.

        Raises:
            OSError, ZMQError: there are no descriptors or no memory for it; nothing is left.
        """
        self.to, self.trouble = to, ""
        self.is_closed = self.was_up = self._is_connected = False
        self._sockets, self._dispatcher, self._owner = sockets, sockets.dispatcher, owner
        self._lock = threading.RLock()  # guards the socket
        self._waiting: deque[Parts] = deque()  # while any waits, the socket is the dispatcher's
        self._under_way = 0  # pieces
        self._broken: float | None = time.monotonic()
        self._looks = False
        self._socket = sockets.connecting(to, address)
        self._all = [self._socket]
        try:
            monitor, self._look_at_monitor = sockets.monitor(self._socket, _WATCHED, self._happened)
            self._all.append(monitor)
            self._socket.connect(str(address))
            self._send = self._socket.send
            self._send(first[0][0], NOW)
            self._fd = sockets.watch(self._socket, self._empty)
        except BaseException:
            self.close()
            raise
        self._dispatcher.call(self._look_later)

    def send(self, message: Sequence[Parts]) -> None:
        """Send a message and its pieces, or have them sent."""
        with self._lock:
            if self.is_closed:
                return  # that is reported
            if not self._waiting and len(message) == 1:
                try:
                    self._send(message[0][0], NOW)
                    # The use of a socket takes what its descriptor reports from the other thread.
                    if int(self._socket.getsockopt(EVENTS)) & POLLIN:
                        self._dispatcher.look(self._fd)
                    return
                except zmq.Again:
                    pass
            self._waiting.extend(message)
            self._dispatcher.look(self._fd)

    def close(self) -> None:
        """Drop what has not left; safe to call again."""
        with self._lock:
            self.is_closed = True
            self._waiting.clear()
            self._sockets.close(*self._all)

    # -- in the thread that receives ----------------------------------------------------------

    def _empty(self) -> bool:
        """Read the answers, and send the messages that wait, until nothing can be done."""
        events = POLLIN
        while events & POLLIN or (events & POLLOUT and self._may_send()):
            self._send_waiting()
            self._read_back()
            with self._lock:
                # Only this makes the socket look at all that its descriptor has reported.
                events = 0 if self.is_closed else int(self._socket.getsockopt(EVENTS))
        return False

    def _read_back(self) -> None:
        with suppress(zmq.Again):
            while True:
                with self._lock:
                    if self.is_closed:
                        return
                    part = self._socket.recv(NOW)
                    while self._socket.rcvmore:
                        self._socket.recv(NOW)
                if part == MORE_BACK:
                    self._under_way -= 1
                else:
                    self._owner.answered(self, part)

    def _may_send(self) -> bool:
        waiting = self._waiting
        return bool(waiting) and (len(waiting[0]) == 1 or self._under_way < self._sockets.window)

    def _send_waiting(self) -> None:
        while self._may_send():
            head, *piece = self._waiting[0]
            try:
                self._send(head, MORE if piece else NOW)
                for each in piece:
                    self._send(each, NOW)
            except zmq.Again:  # of the first part alone
                return
            except Exception as error:  # part of the message may have left
                logger.exception("A message to %s could not be sent", self.to)
                self._owner.unreachable(self, f"cannot be sent a message: {error!r}")
                return
            self._under_way += len(piece)
            with self._lock:
                if self._waiting:
                    self._waiting.popleft()

    def _happened(self, event: int, _: int) -> None:
        if event == zmq.EVENT_CONNECTED:
            self._is_connected = True
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._broken, again, self.was_up = None, self.was_up, True
            if again:
                self._under_way = 0
                self._owner.came_back(self)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._owner.refused(self, "it does not know the key of this member")
        elif event & _FAILED:
            self.trouble = "who answers there does not prove to be it"
        elif event == zmq.EVENT_DISCONNECTED:
            self._is_connected = False
            if self._broken is None:
                self._broken = time.monotonic()
                self._look_later()
        elif not self._is_connected:
            self.trouble = self.trouble or "it does not answer at that address"

    def _until(self) -> float:
        assert self._broken is not None
        return self._broken + self._sockets.bound * (RETURN if self.was_up else 1.0)

    def _look_later(self) -> None:
        if self._broken is not None and not self._looks and not self.is_closed:
            self._looks = True
            self._dispatcher.call_later(self._until() - time.monotonic(), self._look)

    def _look(self) -> None:
        """Give up what has not come back in time."""
        self._looks = False
        if self.is_closed:
            return
        self._look_at_monitor()  # this thread may have slept while the connection came back
        if self._broken is None or self.is_closed:
            return
        now = time.monotonic()
        if now >= self._until():
            if self.was_up:
                why = "cannot be reached any more: its connection broke and did not come back"
                self._owner.unreachable(self, why)
            elif not self._is_connected:  # or it takes its time to let this member in
                why = f"cannot be reached{self.trouble and f': {self.trouble}'}"
                self._owner.unreachable(self, why)
            self._broken = now
        self._look_later()
