"""What leaves through one connection, in order, many messages in a packet."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Any

from pparallel.runtime.resources import is_exhausted
from pparallel_ipc import messages
from pparallel_ipc.alone import alone
from pparallel_ipc.hub import WRITE, Hub

_TOGETHER = 16  #: entries that are not held back any longer
_AT_ONCE = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_AT_ONCE_EACH = (_AT_ONCE,)
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
        self._entries: list[tuple[Any, int, Sequence[int]]] = []  # until they are sent
        # The next packet, with its descriptors and the number of entries in it.
        self._packet: tuple[bytes, Sequence[int], int] | None = None
        self._sent: list[int] = []  # not empty: the packet has left
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
        return self._is_dead or not (self._entries or self._sending.locked())

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
            self._entries
            and (self._is_dead or (self._is_open and not self._waits))
            and alone(self._sending, self._send)
        ):
            pass

    def _send(self) -> None:
        """Send what there is; called by one thread at a time, as are those below."""
        while not self._is_dead:
            try:
                if not self._sent:
                    if self._packet is None and not self._pack():
                        return
                    self._send_one()
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
                self._has_sent()
        self._drop()

    def _send_one(self) -> None:
        """Send the packet and take note, in one go: no signal's handler runs in between."""
        assert self._packet is not None
        data, fds, _ = self._packet
        if fds:
            sendmsg, rights = self._sock.sendmsg, messages.rights(fds)
            self._sent.extend(map(sendmsg, ((data,),), (rights,), (_AT_ONCE,)))
        else:
            self._sent.extend(map(self._sock.send, (data,), _AT_ONCE_EACH))

    def _has_sent(self) -> None:
        assert self._packet is not None
        _, fds, count = self._packet
        del self._entries[:count]  # these three without a call in between
        self._packet = None
        del self._sent[:]
        messages.close(fds)

    def _pack(self) -> bool:
        """Turn what was put first into a packet; return False if there is nothing.

        It stays where it is until that has been sent.
        """
        entries, count, total = self._entries, 0, 0
        if not entries:
            return False
        first, size, fds = entries[0]
        if size == _ALONE or fds:  # descriptors belong to the one entry of their packet
            data = messages.dumps(first if size == _ALONE else (messages.MANY, [first]))
            self._packet = data, fds, 1
            return True
        for _, size, fds in entries:
            total += size + messages.HEADER
            if count and (size == _ALONE or fds or total > messages.LONGEST):
                break
            count += 1
        together = [each[0] for each in entries[:count]]
        self._packet = messages.dumps((messages.MANY, together)), (), count
        return True

    def _drop(self) -> None:
        entries, self._entries = self._entries, []
        self._packet = None
        for _, _, fds in entries:
            messages.close(fds)
