"""What one other member asks of this one: its requests come in, and the answers go back."""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from pparallel.interfaces.transport import Frames, Handler
from pparallel.runtime.links import FAILED, attempt, outcome
from pparallel.runtime.shm import Parcels
from pparallel_ipc import messages
from pparallel_ipc.hub import Hub
from pparallel_ipc.lanes import ServedLane
from pparallel_ipc.messages import Packed, Sized
from pparallel_ipc.post import Post

logger = logging.getLogger(__name__)

NO_DESCRIPTORS = "this process has no descriptors left; raise the limit (ulimit -n)"
NO_THREADS = "this process can start no more threads; raise the limit (ulimit -u)"
_REMEMBERED = 256  #: large answers of which it is known where they lie, should the peer end


class Guest:
    """The called end of a connection."""

    def __init__(self, peer: str, handler: Handler, hub: Hub, post: Post, parcels: Parcels) -> None:
        self.peer, self.post, self._hub = peer, post, hub
        self._handler, self._parcels = handler, parcels
        self._lock = threading.RLock()
        self._lanes: set[ServedLane] = set()
        self._large: deque[bytes] = deque(maxlen=_REMEMBERED)
        self._is_closed = False

    def take(self, entries: list[Any], fds: list[int]) -> None:
        """Have requests handled: called by the hub."""
        do = self._hub.do
        while entries:  # those that are left are taken later, should there be no memory just now
            number, packed = entries[0]
            frames, writable = packed
            if writable or type(frames) is not list:
                do(partial(self._handle, number, packed, fds))
            else:
                do(partial(self._handle_small, number, frames))
            del entries[0]

    def add_lane(self, fds: Sequence[int]) -> None:
        """Serve a lane from now on.

        Raises:
            OSError: it cannot be served. Its caller is told that the call was dropped.
        """
        if not fds:
            raise OSError(NO_DESCRIPTORS)
        sock = socket.socket(fileno=fds[0])
        lane = ServedLane(sock, self.peer, self._handler, self._parcels, self._lane_ended)
        with self._lock:
            if self._is_closed:
                sock.close()
                return
            with suppress(RuntimeError):
                lane.thread.start()  # with the lock: what is listed can be waited for
                self._lanes.add(lane)
                return
        lane.close()
        raise OSError(NO_THREADS)

    def close(self) -> None:
        """Serve no lane any more, and let go of what the peer will not read."""
        with self._lock:
            self._is_closed = True
            lanes = list(self._lanes)
        for each in lanes:
            each.end()
        while self._large:
            self._parcels.drop(self._large.popleft())

    def threads(self) -> list[threading.Thread]:
        """Return the threads that serve lanes."""
        with self._lock:
            return [each.thread for each in self._lanes]

    def _handle_small(self, number: int, frames: Frames) -> None:
        try:
            found = attempt(self._handler, self.peer, frames)
            if isinstance(found, Future):
                found.add_done_callback(partial(self._reply, number))
                return
            status, reply = found
            del found
            if (size := messages.small_size(reply)) >= 0:
                self.post.put((number, status, (reply, ())), size, (), hold=True)
                return
            status, begun = messages.begin(status, reply, self._parcels)
            del reply
            self._put(number, *messages.finish(status, begun))
        except BaseException as error:  # noqa: BLE001 - its caller must know
            self._refuse(number, error)

    def _handle(self, number: int, packed: Packed, fds: list[int]) -> None:
        try:
            # No name here holds what came, or what goes: see the lanes.
            found = attempt(self._handler, self.peer, messages.unpack(packed, self._parcels, fds))
            if isinstance(found, Future):
                found.add_done_callback(partial(self._reply, number))
                return
            status, frames = found
            del found
            status, begun = messages.begin(status, frames, self._parcels)
            del frames
            self._put(number, *messages.finish(status, begun))
        except BaseException as error:  # noqa: BLE001 - its caller must know
            self._refuse(number, error)

    def _reply(self, number: int, done: Future[Frames]) -> None:
        try:
            status, begun = messages.begin(*outcome(done), self._parcels)
            self._put(number, *messages.finish(status, begun))
        except BaseException as error:  # noqa: BLE001 - its caller must know
            self._refuse(number, error)

    def _refuse(self, number: int, error: BaseException) -> None:
        logger.warning("A request of %s could not be answered", self.peer, exc_info=error)
        self._put(number, FAILED, messages.refused(error))

    def _put(self, number: int, status: int, sized: Sized) -> None:
        packed, size, fds = sized
        if (head := messages.droppable(sized)) is not None:
            self._large.append(head)
        self.post.put((number, status, packed), size, fds, hold=True)

    def _lane_ended(self, lane: ServedLane) -> None:
        with self._lock:
            self._lanes.discard(lane)
