"""The threads on which a member runs the functions that others call."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from pparallel.errors import ClosedError

logger = logging.getLogger(__name__)

Job = Callable[[], None]

#: Seconds after which the requests behind a running one no longer wait for it. A thread that has
#: taken up a job may wait for the GIL for several switch intervals (5 ms each) before the function
#: does anything: shorter limits let the next one overtake it. After a job that took as long as
#: SLOW, its stream is taken to be of slow ones, and the shorter limit holds.
PATIENCE = 0.05
PATIENCE_WITH_SLOW = 0.01
SLOW = 0.005
IDLE = 10.0  #: seconds after which a thread without work ends


class _Stream:
    """The requests of one sending thread, in order."""

    __slots__ = ("jobs", "key", "owner", "patience", "since")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.jobs: deque[Job] = deque()
        self.owner: object | None = None  # the token of the thread that works on it
        self.since = 0.0  # when its running job started
        self.patience = PATIENCE

    def take(self) -> Job:
        self.since = time.monotonic()
        return self.jobs.popleft()

    def done(self) -> None:
        slow = time.monotonic() - self.since >= SLOW
        self.patience = PATIENCE_WITH_SLOW if slow else PATIENCE


class Handlers:
    """Runs jobs: those of one stream start in order, and at most *size* run at once.

    One thread runs the jobs of a stream one after another while they are quick, which keeps their
    order exact and costs one hand-over for many. A job that takes long gives those behind it to
    another thread. A job that waits for another member, inside
    :meth:`waiting`, does not count as running: another thread takes its place, so that members
    that call one another cannot use up their threads and stop.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._work = threading.Condition()
        self._streams: dict[Hashable, _Stream] = {}
        self._ready: deque[_Stream] = deque()
        self._behind: set[_Stream] = set()  # owned, with jobs behind the running one
        self._threads: set[threading.Thread] = set()
        self._running = 0
        self._idle = 0
        self._closed = False
        self._here = threading.local()

    def submit(self, key: Hashable, job: Job) -> None:
        """Run *job* after those submitted before it under the same *key* have started.

        Raises:
            ClosedError: after :meth:`close`.
        """
        with self._work:
            if self._closed:
                raise ClosedError(f"member {self._name!r}")
            stream = self._streams.get(key)
            if stream is None:
                stream = self._streams[key] = _Stream(key)
                self._ready.append(stream)
            elif stream.owner is not None:
                self._behind.add(stream)
            stream.jobs.append(job)
            self._call_a_thread()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Say that the job of this thread, if it runs one, only waits for others inside."""
        stream: _Stream | None = getattr(self._here, "stream", None)
        if stream is None:
            yield
            return
        with self._work:
            self._running -= 1
            stream.since = 0.0
            self._call_a_thread()
        try:
            yield
        finally:
            with self._work:
                self._running += 1

    def close(self) -> None:
        """Start nothing more; jobs that run are not waited for."""
        with self._work:
            self._closed = True
            self._streams.clear()
            self._ready.clear()
            self._behind.clear()
            self._work.notify_all()

    def join(self, timeout: float) -> bool:
        """Wait until the threads have ended; return whether they all did."""
        deadline = time.monotonic() + timeout
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(
            thread.is_alive() for thread in self._threads if thread != threading.current_thread()
        )

    def _call_a_thread(self) -> None:
        """Have somebody look for work; called with the lock held."""
        if not (self._ready or self._behind) or self._running >= self._size:
            return
        if self._idle:
            self._work.notify()
        else:
            thread = threading.Thread(target=self._serve, name=f"{self._name}-handler", daemon=True)
            self._threads.add(thread)
            self._running += 1  # counted from here, so that one burst does not start too many
            thread.start()

    def _serve(self) -> None:
        token = object()
        counted = True
        try:
            while (stream := self._next(token, counted)) is not None:
                counted = True
                self._here.stream = stream
                self._run(stream, token)
                self._here.stream = None
        finally:
            with self._work:
                self._threads.discard(threading.current_thread())

    def _next(self, token: object, counted: bool) -> _Stream | None:
        """Wait for a stream to work on; ``None`` ends the thread."""
        until = time.monotonic() + IDLE
        with self._work:
            if counted:
                self._running -= 1
            while not self._closed:
                now = time.monotonic()
                if self._running < self._size and (stream := self._choose(now)):
                    stream.owner = token
                    self._running += 1
                    if self._ready or self._behind:
                        self._call_a_thread()
                    return stream
                if now >= until:
                    return None
                self._idle += 1
                self._work.wait(min(until, self._next_hand_over(until)) - now)
                self._idle -= 1
        return None

    def _choose(self, now: float) -> _Stream | None:
        if self._ready:
            return self._ready.popleft()
        for stream in self._behind:
            if now >= stream.since + stream.patience:
                self._behind.discard(stream)
                return stream
        return None

    def _next_hand_over(self, otherwise: float) -> float:
        if self._running >= self._size:
            return otherwise
        return min((each.since + each.patience for each in self._behind), default=otherwise)

    def _run(self, stream: _Stream, token: object) -> None:
        while True:
            with self._work:
                if stream.owner is not token or self._closed:
                    return
                if not stream.jobs:
                    stream.owner = None
                    self._streams.pop(stream.key, None)
                    self._behind.discard(stream)
                    return
                job = stream.take()
                if stream.jobs:
                    self._behind.add(stream)
                else:
                    self._behind.discard(stream)
            try:
                job()
            except BaseException:  # jobs report their own errors; this one is a defect
                logger.exception("A handler of %s failed", self._name)
            if stream.owner is token:
                stream.done()
            del job  # what it holds is released before this thread blocks again
