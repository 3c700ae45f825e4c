"""What leaves through one connection, in order, many messages in a packet."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from pparallel_ipc import messages
from pparallel_ipc.hub import WRITE, Hub

_TOGETHER = 16  #: entries that are not held back any longer
_AT_ONCE = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_AGAIN = 0.002  #: seconds after which descriptors are sent again where too many were on their way


class Post:
    """Sends entries and single messages through one socket; never blocks, and any thread may.

    What the socket does not take at once waits here, and leaves when it can. How much that may
    become is for the callers to limit.
    """

    def __init__(self, sock: socket.socket, hub: Hub) -> None:
        self._sock, self._hub = sock, hub
        self._number = sock.fileno()
        self._lock = threading.Lock()
        self._entries: deque[tuple[Any, int, Sequence[int]]] = deque()
        self._stuck: deque[tuple[bytes, Sequence[int]]] = deque()  # packets that wait for room
        self._is_open = False
        self._is_held = False  # and the hub is going to flush it
        self._is_dead = False

    def open(self) -> None:
        """Let messages out from now on."""
        with self._lock:
            self._is_open = True
            self._send()
        self.flush()

    def put(self, entry: Any, size: int, fds: Sequence[int], *, hold: bool) -> None:
        """Send an entry: at once, or with the next ones if it may be held back."""
        self._entries.append((entry, size, fds))
        if not hold or len(self._entries) >= _TOGETHER:
            self.flush()
        elif not self._is_held:
            self._is_held = True
            self._hub.hold(self)

    def say(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send a message by itself, after what was put before; closes *fds*."""
        with self._lock:
            self._pack()
            self._stuck.append((messages.dumps(message), fds))
            self._send()

    def flush(self) -> None:
        """Send what has been held back."""
        if not (self._is_held or self._entries):
            return
        self._is_held = False  # first: who finds it set may rely on what he put being sent below
        with self._lock:
            if self._is_open and not self._stuck:
                self._pack()
                self._send()

    def is_empty(self) -> bool:
        """Return whether all has left."""
        return self._is_dead or not (self._entries or self._stuck)

    def can_write(self) -> None:
        """Go on, for there is room: called by the hub."""
        with self._lock:
            self._hub.change(self._number, remove=WRITE)
            self._send()
        self.flush()

    def die(self) -> None:
        """Send nothing any more, and let go of what waits."""
        with self._lock:
            self._is_dead = True
            self._drop()

    def _pack(self) -> None:
        """Turn what was put into packets; called with the lock held, as are those below."""
        entries: list[Any] = []
        total = 0
        while self._entries:
            entry, size, fds = self._entries.popleft()
            if entries and (fds or total + size > messages.LONGEST):
                self._stuck.append((messages.dumps((messages.MANY, entries)), ()))
                entries, total = [], 0
            entries.append(entry)
            total += size + 64
            if fds:  # they belong to the one entry of their packet
                self._stuck.append((messages.dumps((messages.MANY, entries)), fds))
                entries, total = [], 0
        if entries:
            self._stuck.append((messages.dumps((messages.MANY, entries)), ()))

    def _send(self) -> None:
        if not self._is_open and not self._is_dead:
            return
        while self._stuck and not self._is_dead:
            packet, fds = self._stuck[0]
            try:
                self._send_one(packet, fds)
            except BlockingIOError:
                self._hub.change(self._number, add=WRITE)
                return
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:
                    self._hub.later(_AGAIN, self.can_write)
                    return
                self._is_dead = True  # the end will be seen where this connection is read
            else:
                self._stuck.popleft()
                messages.close(fds)
        if self._is_dead:
            self._drop()

    def _send_one(self, packet: bytes, fds: Sequence[int]) -> None:
        if fds:
            messages.send_with(self._sock, packet, fds)
        else:
            self._sock.send(packet, _AT_ONCE)

    def _drop(self) -> None:
        for _, fds in self._stuck:
            messages.close(fds)
        for _, _, fds in self._entries:
            for each in fds:
                os.close(each)
        self._stuck.clear()
        self._entries.clear()
