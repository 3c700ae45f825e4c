"""What one other member asks of this one: its requests come in, and the answers go back."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from pparallel.interfaces.transport import Handler
from pparallel.runtime.memory import Payload
from pparallel.runtime.processes import forget_in_children
from pparallel.runtime.resources import start_thread
from pparallel_ipc import messages
from pparallel_ipc.connection import Post
from pparallel_ipc.hub import Hub
from pparallel_ipc.lanes import Answerer, ServedLane
from pparallel_ipc.messages import Sized

NO_DESCRIPTORS = "this process has no descriptors left; raise the limit (ulimit -n)"
_REMEMBERED = 256  #: large answers of which it is known where they lie, should the peer end


class Guest:
    """The called end of a connection."""

    def __init__(self, peer: str, handler: Handler, hub: Hub, post: Post, payload: Payload) -> None:
        self.post, self._hub, self._payload = post, hub, payload
        self._answerer = Answerer(peer, handler, payload)
        self._lock = threading.RLock()
        self._lanes: set[ServedLane] = set()
        self._large: deque[Any] = deque(maxlen=_REMEMBERED)
        self._is_closed = False

    def take(self, entries: list[Any]) -> None:
        """Have requests handled: called by the hub."""
        do = self._hub.do
        while entries:  # those that are left are taken later, should there be no memory just now
            number, packed = entries[0]
            do(partial(self._answerer.handle, packed, partial(self._put, number)))
            del entries[0]

    def add_lane(self, fds: Sequence[int]) -> None:
        """Serve a lane from now on.

        Raises:
            OSError: it cannot be served. Its caller sees that, and uses the connection.
        """
        if not fds:
            raise OSError(NO_DESCRIPTORS)
        forget_in_children(*fds)
        lane = ServedLane(socket.socket(fileno=fds[0]), self._answerer, self._lanes.discard)
        with self._lock:
            try:
                if not self._is_closed:
                    start_thread(lane.thread)  # with the lock: what is listed can be waited for
                    self._lanes.add(lane)
            finally:
                if lane not in self._lanes:
                    lane.close()

    def close(self, *, peer_reads: bool = False) -> None:
        """Serve no lane any more, and let go of what was sent, unless *peer_reads* it."""
        self._answerer.keeps = peer_reads
        with self._lock:
            self._is_closed = True
            for each in list(self._lanes):
                each.end()
        while self._large and not peer_reads:
            self._payload.drop(self._large.popleft())

    def threads(self) -> list[threading.Thread]:
        """Return the threads that serve lanes."""
        with self._lock:
            return [each.thread for each in self._lanes]

    def _put(self, number: int, status: int, sized: Sized) -> None:
        packed, size = sized
        if (head := messages.droppable(sized)) is not None:
            with self._lock:
                if self._is_closed:  # nobody reads it
                    self._payload.drop(head)
                    return
                self._large.append(head)
        self.post.append(((number, status, packed), size, ()))
        self.post.added(hold=True)
