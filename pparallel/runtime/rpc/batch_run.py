"""Calls that came together, on the side where they run.

:mod:`pparallel.runtime.rpc.batches` is the side that calls.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from typing_extensions import Buffer

from pparallel.interfaces.transport import Frames
from pparallel.runtime.lean_future import LeanFuture
from pparallel.runtime.pending import settle
from pparallel.runtime.plain import PLAIN
from pparallel.runtime.rpc import current, wire
from pparallel.runtime.rpc.batches import LARGE, SMALL
from pparallel.runtime.rpc.wire import Status

if TYPE_CHECKING:
    from pparallel.runtime.rpc.endpoint import Endpoint
    from pparallel.runtime.rpc.stream import Job, Stream

LATE = 0.001  #: seconds after which the results that are there do not wait for the others

Key = tuple[str, int, int]  #: sender, its session, and the number of its request

_NOTHING: Sequence[Buffer] = ()
_LONG = frozenset({bytes, str})


class BatchRun:
    """Runs calls, each once, and answers with their results.

    Attributes:
        stream: of its jobs, where the thread that received them is to run them.
        over: when the last of them ended.
    """

    def __init__(self, endpoint: Endpoint, key: Key, calls: Sequence[bytes]) -> None:
        """Know the calls, each of which is in the quick form."""
        self._endpoint, self._key, self._calls = endpoint, key, calls
        self.stream: Stream | None = None
        self.over = math.inf
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._left = len(calls)
        self._is_late = False
        self._indices: list[int] = []  # of the results that are to be told
        self._values: list[object] = []
        self._framed: deque[tuple[int, Frames]] = deque()  # of those that are not small data
        self._reply: Future[Frames] | None = None

    def jobs(self) -> list[Job]:
        """Return the calls, to be run in order by whatever threads."""
        return [partial(self._run, *each) for each in enumerate(self._calls)]

    def reply(self) -> Frames | Future[Frames]:
        """Return the next reply, or what will be it: the sender waits for one at a time."""
        with self._lock:
            if self._is_ready():
                return self._take()
            self._reply = reply = LeanFuture[Frames]()
        return reply

    def tick(self, now: float) -> None:
        """Tell what is there, if it is time."""
        if now - self._began < LATE:
            return
        endpoint = self._endpoint
        endpoint.ticker.remove(self.tick)
        endpoint.keep_late(self._key, self)  # first: from then on its sender may ask for it
        with self._lock:
            self._is_late = True
            told = self._told()
            if not self._left and self._is_told():  # it had ended before
                endpoint.late_batches.pop(self._key, None)
        if self.stream is not None:
            endpoint.handlers.hand_over(self.stream)
        if told is not None:
            settle(*told)

    def _run(self, index: int, data: bytes) -> None:
        endpoint = self._endpoint
        if current.acting.get() is not endpoint:
            current.act_for(endpoint)
        frames = _NOTHING
        try:
            value = endpoint.quick.run_one(data)
            kind = type(value)
            if kind in _LONG and len(value) > SMALL:
                frames = [wire.QUICK_OK, endpoint.quick.dumps(value)]
            elif kind not in PLAIN:
                frames = wire.join(Status.OK, endpoint.serializer.dumps(value))
        except BaseException as error:  # noqa: BLE001 - goes back to the caller
            frames = endpoint.failed(error)
        with self._lock:
            if frames:
                self._framed.append((index, frames))
            else:
                self._indices.append(index)
                self._values.append(value)
            self._left -= 1
            if self._left and not self._is_late:
                return
            told = self._told()
        if not self._left:
            self.over = time.monotonic()
            endpoint.ticker.remove(self.tick)
        if told is not None:
            settle(*told)

    def _is_told(self) -> bool:
        return not (self._indices or self._framed)

    def _told(self) -> tuple[Future[Frames], Frames] | None:
        """Return who waits for a reply, and it, if it is time; called with the lock held."""
        reply = self._reply
        if reply is None or not self._is_ready():
            return None
        self._reply = None
        return reply, self._take()

    def _is_ready(self) -> bool:
        return not self._left or (self._is_late and not self._is_told())

    def _take(self) -> Frames:
        """Return the next reply; of large results, as many as go well into one message."""
        counts: list[tuple[int, int]] = []
        frames: list[Buffer] = []
        size = 0
        while self._framed and size <= LARGE:
            index, each = self._framed.popleft()
            counts.append((index, len(each)))
            frames += each
            size += wire.size(each)
        body = self._endpoint.quick.dumps((self._indices, self._values, counts))
        self._indices, self._values = [], []
        if self._framed and not self._is_late:
            self._is_late = True
            self._endpoint.keep_late(self._key, self)
        elif self._is_late and not self._left and self._is_told():
            self._endpoint.late_batches.pop(self._key, None)
        return [wire.QUICK_OK, body, *frames]
