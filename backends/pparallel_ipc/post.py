"""What leaves through one connection, in order, many messages in a packet."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from pparallel.runtime.resources import is_exhausted
from pparallel_ipc import messages
from pparallel_ipc.alone import alone
from pparallel_ipc.hub import WRITE, Hub

_TOGETHER = 16  #: entries that are not held back any longer
_AT_ONCE = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_AGAIN = 0.002  #: seconds after which what found no memory or descriptors is sent again
_ALONE = -1  #: instead of a size: a message by itself
PATIENCE = 1.0  #: seconds that the end waits for a thread that is sending


class Post:
    """Sends entries and single messages through one socket; never blocks, and any thread may.

    What the socket does not take at once waits here, and leaves when it can. How much that may
    become is for the callers to limit.

    One thread sends at a time. Others, and a signal's handler in that thread, only add to what it
    sends, so that nobody waits for a lock.
    """

    def __init__(self, sock: socket.socket, hub: Hub) -> None:
        self._sock, self._hub = sock, hub
        self._number = sock.fileno()
        self._sending = threading.Lock()  # held by the thread that sends
        self._entries: deque[tuple[Any, int, Sequence[int]]] = deque()
        self._stuck: deque[tuple[bytes, Sequence[int]]] = deque()  # packets that wait for room
        self._is_open = False
        self._is_held = False  # and the hub is going to flush it
        self._waits = False  # for the hub to say that it may go on
        self._is_dead = False

    def open(self) -> None:
        """Let messages out from now on."""
        self._is_open = True
        self._go_on()

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
        self._entries.append((message, _ALONE, fds))
        self.flush()

    def flush(self) -> None:
        """Send what has been held back."""
        self._is_held = False  # first: who finds it set may rely on what he put being sent below
        self._go_on()

    def is_empty(self) -> bool:
        """Return whether all has left."""
        return self._is_dead or not (self._entries or self._stuck or self._sending.locked())

    def can_write(self) -> None:
        """Go on, for there is room: called by the hub."""
        if not self._is_dead:
            self._waits = False
            self._hub.change(self._number, remove=WRITE)
        self._go_on()

    def die(self) -> None:
        """Send nothing any more, and let go of what waits."""
        self._is_dead = True
        if self._sending.acquire(timeout=PATIENCE):  # nobody uses the socket afterwards
            self._sending.release()
        self._go_on()

    def _go_on(self) -> None:
        while (
            (self._entries or self._stuck)
            and (self._is_dead or (self._is_open and not self._waits))
            and alone(self._sending, self._send)
        ):
            pass

    def _send(self) -> None:
        """Send what there is; called by one thread at a time, as are those below."""
        while not self._is_dead:
            try:
                if not (self._stuck or self._pack()):
                    return
                self._send_one(*self._stuck[0])
            except BlockingIOError:
                self._waits = True
                self._hub.change(self._number, add=WRITE)
                return
            except (OSError, MemoryError) as error:
                if is_exhausted(error):
                    self._waits = True
                    self._hub.later(_AGAIN, self.can_write)
                    return
                self._is_dead = True  # the end will be seen where this connection is read
            else:
                messages.close(self._stuck.popleft()[1])
        self._drop()

    def _send_one(self, packet: bytes, fds: Sequence[int]) -> None:
        if fds:
            messages.send_with(self._sock, packet, fds)
        else:
            self._sock.send(packet, _AT_ONCE)

    def _pack(self) -> bool:
        """Turn what was put into one more packet; return False if there was nothing."""
        taken: list[tuple[Any, int, Sequence[int]]] = []
        total = 0
        try:
            while self._entries:
                _, size, fds = self._entries[0]
                # Descriptors belong to the one entry of their packet.
                is_alone = size == _ALONE or bool(fds)
                total += size + messages.HEADER
                if taken and (is_alone or total > messages.LONGEST):
                    break
                taken.append(self._entries.popleft())
                if is_alone:
                    break
            if not taken:
                return False
            first, size, fds = taken[0]
            message = first if size == _ALONE else (messages.MANY, [each[0] for each in taken])
            self._stuck.append((messages.dumps(message), fds))
        except BaseException:
            self._entries.extendleft(reversed(taken))
            raise
        return True

    def _drop(self) -> None:
        while self._stuck:
            messages.close(self._stuck.popleft()[1])
        while self._entries:
            messages.close(self._entries.popleft()[2])
