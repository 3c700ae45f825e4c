"""The threads on which a member runs the functions that others call."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from threading import get_ident
from time import monotonic
from typing import Any

from pparallel.errors import CallTimeoutError, ClosedError, ResourceExhaustedError
from pparallel.runtime import dedicated
from pparallel.runtime.resources import start_thread
from pparallel.runtime.timers import Timers
from pparallel.runtime.user_code import has_entered

logger = logging.getLogger(__name__)

Job = Callable[[], None]

IDLE = 10.0  #: seconds after which a thread without work ends
LATER = 0.1  #: seconds after which it is tried again to start a thread

LONG = 0.005  #: seconds after which it is looked whether the next may start beside a running job
SLOW = 0.001  #: seconds from which on a job has taken long
AGAIN = 16  #: quick jobs after which those of their key are taken for quick again
MANY = 4096  #: keys that are remembered for taking long

_NOT_RUNNING: AbstractContextManager[None] = nullcontext()


class Stream:
    """The requests of one sending thread, in order: the next starts when the last has entered.

    Attributes:
        jobs: taken with a lock held, by the thread that works on it or by one that takes over.
        purge_at: number of jobs from which on those that have timed out are looked for.
    """

    __slots__ = "began", "jobs", "key", "look_at", "owner", "purge_at", "quickly", "since", "thread"

    def __init__(self, key: Hashable, thread: int = 0, *, quickly: bool = False) -> None:
        """Know the sender's key. *thread* works on it, without a token, unless it is 0.

        Others wait for that thread if it is to be done *quickly*.
        """
        now = monotonic() if thread else 0.0
        self.key, self.thread, self.quickly = key, thread, quickly
        self.jobs: deque[Job] = deque()
        self.owner: object | None = self if thread else None  # the token of the thread, or this
        self.since = now  # when its running job started; 0: it only waits
        self.began = now  # when it started, whatever it does
        self.look_at = now + LONG  # when to look whether that job has entered its function
        self.purge_at = 64

    def is_under_way(self, now: float) -> bool:
        """Return whether the running job has entered its function, so that the next may start."""
        if now < self.look_at:
            return False
        self.look_at = now + LONG
        return self.since == 0.0 or has_entered(self.thread)


class _Here(threading.local):
    """What the calling thread does."""

    stream: Stream | None = None  #: of the job that it runs

    def __init__(self) -> None:
        self.thread = get_ident()
        self.spares: list[Stream] = []  # of jobs that it has run: to make one costs more than that


class Handlers:
    """Runs jobs: those of one stream start in order, and at most *size* run at once.

    One thread runs the jobs of a stream one after another while they are quick. Those behind one
    that takes long are given to another thread, once that one has entered the user's function. A
    job that waits for another member, inside :meth:`waiting`, does not count as running, so that
    members that call one another cannot use up their threads and stop.

    A job may be a ``functools.partial`` of a method of an object that has ``expires``, when its
    caller gives up by ``time.monotonic``, and ``drop(error, *args)``, called with the partial's
    arguments where the job is not run: it has expired here, or no thread can be started for it.

    Attributes:
        here: tells whether the calling thread runs a job.
        clock: by whose thread, if it has one, it is tried again to start one here.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._lock = threading.RLock()
        # Held by the lock itself: `with` of this one runs Python code, which may fail halfway.
        self._work = threading.Condition(self._lock)
        self._streams: dict[Hashable, Stream] = {}
        self._ready: deque[Stream] = deque()
        self._behind: set[Stream] = set()  # owned, with jobs behind the running one
        self._threads: set[threading.Thread] = set()
        self._slow: dict[Hashable, int] = {}  # quick jobs that are to come first
        self._dropped: deque[Job] = deque()  # what tells their callers, without the lock
        self._warned = -math.inf  # when the log had it last that there are no more threads
        self._running = 0
        self._idle = 0
        self._closed = self._runs_rest = self._tries_again = False
        self.here = _Here()
        self.timers: Timers | None = None

    def submit(self, key: Hashable, *jobs: Job) -> None:
        """Run *jobs* after those submitted before them under the same *key* have started.

        Raises:
            ClosedError: after :meth:`close`, unless that said to run the rest.
        """
        with self._lock:
            if self._closed and not self._runs_rest:
                raise ClosedError(f"member {self._name!r}")
            stream = self._streams.get(key)
            if stream is None:
                stream = self._streams[key] = Stream(key)
                self._ready.append(stream)
            elif stream.owner is not None:
                self._behind.add(stream)
            stream.jobs.extend(jobs)
            if len(stream.jobs) > stream.purge_at:
                self._drop(stream)
            self._call_a_thread()
        if self._dropped:
            self._drop_jobs()

    def is_running_here(self) -> bool:
        """Return whether the calling thread runs a job."""
        return self.here.stream is not None

    def enter(self, key: Hashable, *, quickly: bool) -> bool:
        """Count the calling thread, one of the transport's, as one that runs a job of *key*.

        Where others wait for it, *quickly*, it runs no job of a key whose jobs take long.

        Returns:
            False: the job is to be submitted, for others of its *key* are before it, as many run
            already as may, or it is that of a job of this thread, which calls its own member.

        Raises:
            ClosedError: after :meth:`close`.
        """
        here = self.here
        if here.stream is not None:
            return False
        with self._lock:
            if self._closed:
                raise ClosedError(f"member {self._name!r}")
            is_slow = quickly and key in self._slow
            if is_slow or self._running >= self._size or key in self._streams:
                return False
            self._running += 1
            try:
                stream = here.spares.pop()  # in one step, for signal handlers
            except IndexError:
                stream = Stream(key, here.thread, quickly=quickly)
            else:
                stream.key, stream.quickly = key, quickly
                stream.began = stream.since = now = monotonic()
                stream.look_at = now + LONG
            here.stream = self._streams[key] = stream
        return True

    def reserve(
        self, key: Hashable, jobs: Iterable[Job], begin: Callable[[Job], None]
    ) -> Stream | None:
        """Have the calling thread, whose time others need, run *jobs* in order soon.

        Nobody looks whether they take long: that is to be told by :meth:`hand_over`. *begin* is
        passed what the thread is to call then.

        Returns:
            Where they stand; ``None``: they are to be submitted, as :meth:`enter` says.

        Raises:
            ClosedError: after :meth:`close`.
        """
        if self.here.stream is not None:
            return None
        with self._lock:
            if self._closed:
                raise ClosedError(f"member {self._name!r}")
            stream = self._streams.get(key)
            if stream is not None and stream.owner is stream and stream.quickly:
                stream.jobs.extend(jobs)
                if stream.since == 0.0:
                    self._behind.add(stream)
                    self._call_a_thread()
                return stream
            if self._running >= self._size or stream is not None or key in self._slow:
                return None
            self._running += 1
            stream = self._streams[key] = Stream(key, self.here.thread, quickly=True)
            stream.jobs.extend(jobs)
        begin(partial(self._run_reserved, stream))
        return stream

    def hand_over(self, stream: Stream) -> None:
        """Have other threads look after what was reserved, for it takes long."""
        with self._lock:
            if stream.owner is not stream or not stream.jobs:
                return
            if stream.since and monotonic() - stream.since > SLOW and len(self._slow) < MANY:
                self._slow[stream.key] = AGAIN
            self._behind.add(stream)
            self._call_a_thread()
        self._drop_jobs()

    def _run_reserved(self, stream: Stream) -> None:
        """Run jobs in the calling thread, as long as nobody takes over."""
        self.here.stream = stream
        me, behind = self.here.thread, self._behind
        try:
            while True:
                now = monotonic()
                # One that is not behind is for no other thread. From here to where a job is taken
                # there is no call, and no jump back: nothing comes in between.
                if stream.owner is not stream or not stream.jobs or stream in behind:
                    break
                stream.thread, stream.began, stream.since = me, now, now
                stream.jobs.popleft()()
            self._run(stream, stream)
        finally:
            self.leave()

    def leave(self) -> None:
        """Say that the job for which this thread has entered is done."""
        here = self.here
        stream = here.stream
        assert stream is not None
        here.stream = None
        with self._lock:
            self._running -= 1
            if self._slow or (stream.quickly and monotonic() - stream.began > SLOW):
                self._learn(stream)
            if stream.owner is stream:  # no other thread has taken over those behind
                self._behind.discard(stream)
                if stream.jobs:
                    stream.owner = None
                    self._ready.append(stream)
                else:
                    self._streams.pop(stream.key, None)
                    here.spares.append(stream)
            if self._ready or self._behind:
                self._call_a_thread()
        if self._dropped:
            self._drop_jobs()

    def _learn(self, stream: Stream) -> None:
        """Remember whose jobs take long, and forget it when they have been quick for a while."""
        took = monotonic() - stream.began
        if took > SLOW:
            if len(self._slow) < MANY:
                self._slow[stream.key] = AGAIN
        elif self._slow and stream.key in self._slow:
            self._slow[stream.key] -= 1
            if not self._slow[stream.key]:
                del self._slow[stream.key]

    def waiting(self) -> AbstractContextManager[None]:
        """Say that the job of this thread, if it runs one, only waits for others inside."""
        stream = self.here.stream
        if stream is None:
            return _NOT_RUNNING
        dedicated.about_to_block()
        return self._waiting(stream)

    @contextmanager
    def _waiting(self, stream: Stream) -> Iterator[None]:
        with self._lock:
            self._running -= 1
            if stream.thread == self.here.thread:  # else another has taken over, and runs the next
                stream.since = stream.look_at = 0.0
                if stream.jobs:
                    self._behind.add(stream)
            self._call_a_thread()
        self._drop_jobs()
        try:
            yield
        finally:
            with self._lock:
                self._running += 1

    def close(self, *, runs_rest: bool = False) -> None:
        """Start nothing more, and wait for nothing.

        If it *runs_rest*, what is left and what may come yet is run, but no thread waits for it.
        """
        with self._lock:
            self._closed, self._runs_rest = True, runs_rest
            if not runs_rest:
                for stream in self._streams.values():
                    stream.jobs.clear()
                self._streams.clear()
                self._ready.clear()
                self._behind.clear()
            self._work.notify_all()
            self._call_a_thread()

    def join(self, timeout: float) -> bool:
        """Wait until the threads have ended; return whether they all did."""
        deadline = monotonic() + timeout
        with self._lock:  # held while one is started: only then can it be waited for
            others = self._threads - {threading.current_thread()}
        for thread in others:
            thread.join(max(0.0, deadline - monotonic()))
        return not any(each.is_alive() for each in others)

    def _call_a_thread(self) -> None:
        """Have somebody look for work; called with the lock held."""
        if not (self._ready or self._behind) or self._running >= self._size:
            return
        if self._idle:
            self._work.notify()
            return
        thread = threading.Thread(target=self._serve, name=f"{self._name}-handler", daemon=True)
        self._threads.add(thread)
        self._running += 1  # counted from here, so that one burst does not start too many
        try:
            start_thread(thread)
        except ResourceExhaustedError as error:
            self._threads.discard(thread)
            self._running -= 1
            self._without_thread(error)

    def _without_thread(self, error: ResourceExhaustedError) -> None:
        """Leave the jobs to the threads that there are, or drop them if all of those wait."""
        now = monotonic()
        if self.timers is not None and not self._tries_again:
            with suppress(ResourceExhaustedError):  # that is another thread, unless it runs already
                self.timers.call_later(LATER, self._try_again)
                self._tries_again = True
        if now - self._warned > IDLE:
            self._warned = now
            logger.warning(
                "Member %s runs calls with %d threads: %s", self._name, self._running, error
            )
        if self._running:
            return
        for stream in [*self._ready, *self._behind]:
            self._drop(stream, error)
            if not stream.jobs:
                self._behind.discard(stream)
                if stream in self._ready:
                    self._ready.remove(stream)
                    self._streams.pop(stream.key, None)

    def _try_again(self) -> None:
        with self._lock:
            self._tries_again = False
            self._call_a_thread()
        self._drop_jobs()

    def _drop(self, stream: Stream, error: Exception | None = None) -> None:
        """Take out the jobs that nobody waits for, or all for an *error*; with the lock held."""
        now, kept = monotonic(), deque[Job]()
        for job in stream.jobs:
            owner: Any = getattr(getattr(job, "func", None), "__self__", None)
            if hasattr(owner, "drop") and (error is not None or owner.expires <= now):
                late = CallTimeoutError("a call that waited for a thread", 0)
                self._dropped.append(partial(owner.drop, error or late, *job.args))  # type: ignore[attr-defined] # a partial
            else:
                kept.append(job)
        stream.jobs = kept
        stream.purge_at = max(64, 2 * len(kept))

    def _drop_jobs(self) -> None:
        """Tell the callers of jobs that are not run; called without the lock."""
        while self._dropped:
            logger.debug("%s does not run a call: no thread, or too late", self._name)
            self._dropped.popleft()()

    def _serve(self) -> None:
        token = object()
        try:
            while (stream := self._next(token)) is not None:
                self._run(stream, token)
        except (MemoryError, RuntimeError):  # none to wait with, or no lock
            logger.exception("A thread that runs calls of others in %s has ended", self._name)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
                stream = self.here.stream
                if stream is not None:  # it dies in the midst of that
                    self._running -= 1
                    if stream.owner is token:
                        stream.owner = None
                        self._behind.discard(stream)
                        self._ready.append(stream)
                self._call_a_thread()
            self._drop_jobs()

    def _next(self, token: object) -> Stream | None:
        """Wait for a stream to work on; ``None`` ends the thread."""
        with self._lock:
            self._running -= 1
            self.here.stream = None
            until = monotonic() + IDLE
            while not self._closed or self._ready or self._behind:
                now = monotonic()
                if self._running < self._size and (stream := self._choose(now, token)):
                    self.here.stream = stream
                    self._running += 1
                    if self._ready or self._behind:
                        self._call_a_thread()
                    return stream
                # When a stream is to be handed over, if one is and this thread may take it.
                looks = [each.look_at for each in self._behind if self._running < self._size]
                hand_over = min(looks, default=None)
                if hand_over is None and now >= until:
                    return None
                self._idle += 1
                try:
                    self._work.wait(max(0.0, (until if hand_over is None else hand_over) - now))
                finally:  # also where there is no memory for that
                    self._idle -= 1
        return None

    def _choose(self, now: float, token: object) -> Stream | None:
        if self._ready:
            self._ready[0].owner = token
            return self._ready.popleft()
        for stream in self._behind:
            if stream.is_under_way(now):
                stream.owner = token  # first: who has it takes more while it is not behind
                self._behind.discard(stream)
                return stream
        return None

    def _run(self, stream: Stream, token: object) -> None:
        while True:
            with self._lock:
                if stream.owner is not token:
                    return
                if not stream.jobs:
                    stream.owner = None
                    self._streams.pop(stream.key, None)
                    self._behind.discard(stream)
                    return
                stream.thread = self.here.thread  # only now: another may have taken it over
                stream.began = stream.since = now = monotonic()
                stream.look_at = now + LONG
                if len(stream.jobs) == 1:
                    self._behind.discard(stream)
                elif token is not stream and stream not in self._behind:
                    self._behind.add(stream)
                    self._call_a_thread()  # to watch over those behind this one
                job = stream.jobs.popleft()  # last: what fails before leaves it to others
            try:
                job()
            except BaseException:  # jobs report their own errors; this one is a defect
                if token is stream:  # or an interrupt of the thread that receives
                    raise
                logger.exception("A handler of %s failed", self._name)
            if self._slow and stream.owner is token:
                self._learn(stream)
            del job  # what it holds is released before this thread blocks again
