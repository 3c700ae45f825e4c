"""The threads on which a member runs the functions that others call."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from time import monotonic
from typing import Any, Protocol

from pparallel.errors import ClosedError, ResourceExhaustedError
from pparallel.runtime.resources import start_thread
from pparallel.runtime.state_lock import state_lock

logger = logging.getLogger(__name__)

IDLE = 10.0  #: seconds after which a thread without work ends
LONG = 0.005  #: seconds after which those behind a running job are given to another thread

MOST = 32  #: jobs that come together

Start = Callable[[Callable[[], None], str], object]


class Delays(Protocol):
    """What calls a function later, as :class:`pparallel.runtime.timers.Timers` does."""

    def call_later(self, seconds: float, callback: Callable[[], object], /) -> object:
        """Call *callback* in *seconds*."""


class _Queue:
    """The jobs of one key, in order.

    Attributes:
        owner: the thread that works on it; None: it waits for one, or is not known any more.
        since: when the function of the running job was called; None: it is not yet.
        purge_at: jobs from which on those that are over are looked for.
    """

    __slots__ = ("jobs", "key", "owner", "purge_at", "since")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.jobs: deque[Any] = deque()
        self.owner: _Worker | None = None
        self.since: float | None = None
        self.purge_at = 2 * MOST


class _Worker:
    """What a thread runs: a queue of jobs (``queue``), or a direct call."""

    __slots__ = ("blocked", "queue")

    def __init__(self) -> None:
        self.queue: _Queue | None = None
        self.blocked = 0


class _Here(threading.local):
    worker: _Worker | None = None  #: of the job or direct call that the calling thread runs

    def __init__(self) -> None:
        self.direct = _Worker()  # of its direct calls, one at a time


class _Blocked:
    """Entered while a job waits for other members; several may be entered in one another."""

    __slots__ = ("_executor", "_worker")

    def __init__(self, executor: Executor, worker: _Worker | None) -> None:
        self._executor, self._worker = executor, worker

    def __enter__(self) -> None:
        if self._worker is not None:
            self._executor._block(self._worker)

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._executor._unblock(self._worker)


class Executor:
    """Runs jobs: those of one key start in order, and at most *size* run at once.

    One thread runs the jobs of a key back to back. If the function of one, whose start the job
    reports by :meth:`starts`, has run for :data:`LONG`, another thread takes over those behind it.
    A job that waits for another member, inside :meth:`blocked`, does not count as running, so that
    members that call one another cannot use up their threads.

    Direct calls run in threads of the transport, which are no others' concern: they need a slot
    (:meth:`enter`) and no queue.
    """

    def __init__(
        self,
        size: int,
        name: str,
        timers: Delays,
        run: Callable[[Any], object],
        drop: Callable[[Any, Exception], object],
        *,
        over: Callable[[Any], Exception | None] = lambda job: None,
        ended: Callable[[Hashable], object] = lambda key: None,
        start: Start | None = None,
        clock: Callable[[], float] = monotonic,
        idle: float = IDLE,
    ) -> None:
        """Have no thread yet.

        Args:
            size: jobs that run at once.
            name: of the threads.
            timers: call a function later.
            run: called with each job; it reports errors itself.
            drop: called with a job that is not run, and why: there is no thread, or it is over.
            over: returns why a job need not be run any more.
            ended: called with a key when all jobs of it have been run for now.
            start: starts a thread that calls its first argument, with a name.
            clock: returns the time in seconds.
            idle: seconds after which a thread without work ends.
        """
        self._size, self._name, self._timers = size, name, timers
        self._run, self._drop, self._over, self._ended = run, drop, over, ended
        self._start, self._clock, self._idle_for = start or self._start_thread, clock, idle
        self._work = threading.Condition(state_lock)  # idle threads wait for it
        self._slot = threading.Condition(state_lock)  # direct calls do
        self._queues: dict[Hashable, _Queue] = {}
        self._ready: deque[_Queue] = deque()
        self._threads: set[threading.Thread] = set()
        self._running = self._idle = self._starting = 0
        self._direct = self._granted = 0  # direct calls that wait for a slot, and that have one
        self._favours_direct = True
        self._closed = self._runs_rest = self._watched = False
        self._here = _Here()

    def submit(self, key: Hashable, jobs: Iterable[Any]) -> None:
        """Run *jobs* after those submitted before them under the same *key* have started.

        Raises:
            ClosedError: after :meth:`close`, unless that said to run the rest.
        """
        with state_lock:
            if self._closed and not self._runs_rest:
                raise ClosedError(f"member {self._name!r}")
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = _Queue(key)
                self._ready.append(queue)
            queue.jobs.extend(jobs)
            dropped = self._purge(queue) if len(queue.jobs) > queue.purge_at else ()
            watches = queue.owner is not None and not self._watched
            self._watched = self._watched or watches
            starts = self._find_thread()
        if starts:
            self._start_or_drop()
        if watches:
            self._timers.call_later(LONG, self._look)
        for job, error in dropped:
            self._drop(job, error)

    def starts(self) -> None:
        """Report that the job of the calling thread, if it runs one, calls its function now."""
        worker = self._here.worker
        if worker is not None and worker.queue is not None:
            worker.queue.since = self._clock()

    @property
    def is_running_here(self) -> bool:
        """Whether the calling thread runs a job or a direct call."""
        return self._here.worker is not None

    # -- slots --------------------------------------------------------------------------------

    def enter(self, deadline: float | None) -> bool:
        """Take a slot for a direct call of the calling thread; False: not until *deadline*.

        Raises:
            ClosedError: after :meth:`close`.
        """
        with state_lock:
            if self._running + self._granted >= self._size and not self._wait_for_slot(deadline):
                return False
            if self._closed:
                raise ClosedError(f"member {self._name!r}")
            self._running += 1
        here = self._here
        here.worker = here.direct
        return True

    def leave(self) -> None:
        """Give the slot of the calling thread back."""
        self._here.worker = None
        with state_lock:
            if not (self._direct or self._ready):  # as most of the time
                self._running -= 1
                return
            starts = self._free_slot()
        if starts:
            self._start_or_drop()

    def blocked(self) -> _Blocked:
        """Say that the job of this thread, if it runs one, only waits for others inside."""
        return _Blocked(self, self._here.worker)

    def _block(self, worker: _Worker) -> None:
        with state_lock:
            worker.blocked += 1
            if worker.blocked > 1:
                return
            queue = worker.queue
            # Those behind a job whose function is not called yet, as its arguments call, wait.
            if queue is not None and queue.owner is worker and queue.since is not None:
                self._release(queue)
            starts = self._free_slot()
        if starts:
            self._start_or_drop()

    def _unblock(self, worker: _Worker) -> None:
        with state_lock:
            worker.blocked -= 1
            if not worker.blocked:
                self._running += 1

    def _wait_for_slot(self, deadline: float | None) -> bool:
        """Wait for one that is given to a direct call; called with the lock held."""
        self._direct += 1
        try:
            while not (self._granted or self._closed):
                left = None if deadline is None else deadline - self._clock()
                if left is not None and left <= 0:
                    return False
                self._slot.wait(left)
            self._granted -= not self._closed
            return True
        finally:
            self._direct -= 1

    def _give_slot_back(self) -> None:
        """Have one run less, in turns for those in queues and for direct calls."""
        self._running -= 1
        waits = self._direct > self._granted and self._running + self._granted < self._size
        if waits and (self._favours_direct or not self._ready):
            self._granted += 1
            self._slot.notify()
        self._favours_direct = not self._favours_direct

    def _free_slot(self) -> bool:
        self._give_slot_back()
        return self._find_thread()

    def _release(self, queue: _Queue) -> None:
        """Let another thread work on *queue*; called with the lock held."""
        queue.owner = None
        if queue.jobs:
            self._ready.append(queue)
        else:
            del self._queues[queue.key]

    def _purge(self, queue: _Queue) -> list[tuple[Any, Exception]]:
        """Take out what is over, with why; called with the lock held."""
        found = [(job, self._over(job)) for job in queue.jobs]
        queue.jobs = deque(job for job, error in found if error is None)
        queue.purge_at = 2 * max(len(queue.jobs), MOST)
        return [(job, error) for job, error in found if error is not None]

    # -- threads ------------------------------------------------------------------------------

    def close(self, *, runs_rest: bool = False) -> None:
        """Start nothing more, and wait for nothing.

        If it *runs_rest*, what is left and what may come yet is run, but no thread waits for it.
        """
        with state_lock:
            self._closed, self._runs_rest = True, runs_rest
            if not runs_rest:
                for queue in self._queues.values():
                    queue.jobs.clear()
                self._ready.clear()
            self._idle = 0
            self._work.notify_all()
            self._slot.notify_all()

    def join(self, timeout: float) -> bool:
        """Wait until the threads have ended; return whether they all did."""
        deadline = monotonic() + timeout
        others = [each for each in self._threads.copy() if each is not threading.current_thread()]
        for thread in others:
            thread.join(max(0.0, deadline - monotonic()))
        return not any(each.is_alive() for each in others)

    def _find_thread(self) -> bool:
        """Wake a thread if there is work; return whether one is to be started for it."""
        if len(self._ready) <= self._starting or self._running + self._granted >= self._size:
            return False
        if self._idle:
            self._idle -= 1
            self._work.notify()
            return False
        self._starting += 1
        self._running += 1  # counted from here, so that one burst does not start too many
        return True

    def _start_or_drop(self) -> None:
        """Start the thread that is counted already; called without the lock."""
        try:
            self._start(self._serve, f"{self._name}-handler")
        except BaseException as error:
            is_short, dropped = isinstance(error, ResourceExhaustedError), list[Any]()
            with state_lock:
                self._starting -= 1
                self._running -= 1
                if is_short and not self._running:  # those that run take the rest; there are none
                    for queue in self._ready:
                        dropped.extend(queue.jobs)
                        del self._queues[queue.key]
                    self._ready.clear()
            if not isinstance(error, ResourceExhaustedError):
                raise  # interrupted: the next job has a thread started
            logger.warning(
                "Member %s runs calls with %d threads: %s", self._name, self._running, error
            )
            for job in dropped:
                self._drop(job, error)

    def _start_thread(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.add(thread)
        try:
            start_thread(thread)
        except BaseException:
            self._threads.discard(thread)
            raise

    def _serve(self) -> None:
        """Work until there is nothing more to do for a while: what a thread runs."""
        worker = _Worker()
        with state_lock:
            self._starting -= 1
        try:
            while self._next(worker):
                self._drain(worker)
        finally:
            self._here.worker = None
            self._threads.discard(threading.current_thread())

    def _next(self, worker: _Worker) -> bool:
        """Wait for a queue to work on; False ends the thread."""
        with state_lock:
            self._give_slot_back()
            worker.queue = None
            self._here.worker = None  # whatever runs now is none of a user's
            while not (self._ready and self._running + self._granted < self._size):
                if self._closed:
                    return False
                self._idle += 1
                if not self._work.wait(self._idle_for):
                    self._idle = max(0, self._idle - 1)
                    if not self._ready:
                        return False
            queue = worker.queue = self._ready.popleft()
            queue.owner = worker
            self._running += 1
            starts = self._find_thread()
            watches = len(queue.jobs) > 1 and not self._watched
            self._watched = self._watched or watches
        self._here.worker = worker
        if starts:
            self._start_or_drop()
        if watches:
            self._timers.call_later(LONG, self._look)
        return True

    def _drain(self, worker: _Worker) -> None:
        queue, run = worker.queue, self._run
        assert queue is not None
        while True:
            with state_lock:
                if queue.owner is not worker:
                    break
                if not queue.jobs:
                    queue.owner = None
                    self._queues.pop(queue.key, None)
                    break
                job, queue.since = queue.jobs.popleft(), None
            try:
                run(job)
            except BaseException:  # jobs report their own errors; this one is a defect
                logger.exception("A handler of %s failed", self._name)
            del job  # what it holds is released before this thread waits
        self._ended(queue.key)

    def _look(self) -> None:
        """Have other threads take over from those whose job takes long."""
        now = self._clock()
        with state_lock:
            self._watched = False
            for queue in list(self._queues.values()):
                if queue.owner is None or not queue.jobs:
                    continue
                if queue.since is not None and now - queue.since >= LONG:
                    self._release(queue)
                else:
                    self._watched = True
            again, starts = self._watched, self._find_thread()
        if starts:
            self._start_or_drop()
        if again:
            self._timers.call_later(LONG, self._look)
