"""Thread pool: workers are threads of this process."""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
import warnings
import weakref
from time import monotonic
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.pool import Pool, PoolState
from pparallel.runtime.forks import Inherited
from pparallel.runtime.program_end import end_with_program
from pparallel.runtime.resources import start_thread
from pparallel.runtime.threads import SharedJob, SingleJob, Slot

if TYPE_CHECKING:
    from collections.abc import Callable

    from pparallel.interfaces.pool import Batch, Sink
    from pparallel.runtime.member import Member
    from pparallel_local.config import ThreadPoolConfig

_OPEN = PoolState.OPEN  # looking a member up takes a while
_ENDED = (PoolState.JOINED, PoolState.TERMINATED)
logger = logging.getLogger(__name__)

_STARTS = 3  #: how often an initializer may raise
_PATIENCE = 1.0  #: seconds that join waits, after terminate, for tasks that still run


class ThreadPool(Pool):
    """Threads that take tasks one by one from the batch that came first.

    A batch is put into the queue once for each thread that may help with it. Each worker is a
    slot, and at any time one thread works for it. A task that waits for another task of its own
    pool lends its slot to a fresh thread, so that nested use cannot deadlock; once there are two,
    the first to end its task leaves. Threads are daemons, which no program waits for; a pool that
    is open when it ends is terminated. They run in a copy of the context (:mod:`contextvars`) in
    which the pool was opened.
    """

    def __init__(self, config: ThreadPoolConfig, *, member: Member) -> None:
        self._config = config
        self._size = config.workers
        self._name = f"pparallel-{member.name}-pool"
        self._state = PoolState.NEW
        self._lock = threading.Lock()
        self._quiet = threading.Condition(self._lock)
        #: None: look at the state
        self._queue: queue.SimpleQueue[SingleJob | None] = queue.SimpleQueue()
        self._live: set[SingleJob] = set()  # not ended; threads leave it without the lock
        self._joining = False
        self._threads: set[threading.Thread] = set()
        self._own = threading.local()
        self._starting = threading.Lock()
        self._started = False
        self._failures = 0
        self._broken: BaseException | None = None

    @override
    def size(self) -> int:
        return self._size

    @override
    def open(self) -> None:
        with self._lock:
            self._state = self._state.opened(self)
            self._context = contextvars.copy_context()
            try:
                for number in range(self.size()):
                    Slot(number, self._config.context(number)).employ(self._start_thread)
            except BaseException:
                self._state = PoolState.TERMINATED
                self._queue.put(None)
                raise
        end_with_program(self)
        _pools.add(self)

    def __del__(self) -> None:
        if getattr(self, "_state", None) is _OPEN:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, 2, source=self)
            # A thread, or whoever has the warning, may get hold of the pool still.
            self._state = PoolState.TERMINATED
            self._queue.put(None)

    @override
    def close(self) -> None:
        with self._lock:
            self._state = self._state.closed()

    @override
    def join(self) -> None:
        with self._lock:
            in_task = getattr(self._own, "slot", None) is not None
            self._state.check_joinable(self, from_task=in_task)
            self._joining = True
            self._quiet.wait_for(lambda: not self._live or self._is_terminated())
            if self._state is PoolState.CLOSED:
                self._state = PoolState.JOINED
            threads = list(self._threads)
        self._queue.put(None)
        deadline = monotonic() + _PATIENCE if self._is_terminated() else None
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - monotonic()))

    @override
    def terminate(self) -> None:
        with self._lock:
            if self._state is not PoolState.INHERITED:
                self._state = PoolState.TERMINATED
            self._quiet.notify_all()
        self._queue.put(None)
        self._abort(ClosedError(repr(self), PoolState.TERMINATED.value))

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        tasks = len(batch.items)
        with self._lock:
            if self._state is not _OPEN:
                self._state.check_taking(self, continues=batch.continues)
            if tasks:
                job = SingleJob(batch, sink) if tasks == 1 else SharedJob(batch, sink)
                self._live.add(job)
                for _ in range(min(tasks, self._size)):
                    self._queue.put(job)
        if self._broken is not None:
            self._abort(self._broken)

    @override
    def attend(
        self,
        ready: Callable[[], bool],
        wait: Callable[[float | None], object],
        timeout: float | None,
    ) -> None:
        if self._state is PoolState.INHERITED:
            raise ClosedError(repr(self), self._state.value)
        slot: Slot | None = getattr(self._own, "slot", None)
        if slot is None:
            wait(timeout)
            return
        with slot.lent(self._start_thread):
            wait(timeout)

    def leave_to_parent(self) -> None:
        """Forget the threads, in a child that this program has forked."""
        self._state = PoolState.INHERITED
        self._lock = threading.Lock()
        self._quiet = threading.Condition(self._lock)
        self._queue = queue.SimpleQueue()
        self._live, self._threads = set(), set()
        self._publishing = None

    def _is_terminated(self) -> bool:
        return self._state is PoolState.TERMINATED

    def _start_thread(self, slot: Slot) -> None:
        if self._is_terminated():
            return
        thread = threading.Thread(
            target=self._context.copy().run,
            args=(_serve, weakref.ref(self), self._queue, slot),
            name=f"{self._name}-{slot.number}",
            daemon=True,
        )
        self._threads.add(start_thread(thread))

    def join_in(self, slot: Slot) -> bool:
        """Have the calling thread work for *slot*; return whether it may."""
        self._own.slot = slot
        return self._initialize()

    def serve(self, job: SingleJob | None, slot: Slot) -> bool:
        """Work on what came out of the queue; return whether the thread is to stay."""
        return self._state not in _ENDED and (job is None or self._work_on(job, slot))

    def leave(self) -> None:
        """Have the calling thread work here no more."""
        with self._lock:
            self._threads.discard(threading.current_thread())
            if self._state in _ENDED:
                self._queue.put(None)

    def _work_on(self, job: SingleJob, slot: Slot) -> bool:
        """Run tasks of *job*; return whether the thread is to stay."""
        if slot.threads > 1 and slot.leave():
            self._queue.put(job)
            return False
        with slot.busy:
            remains = job.work(slot)
        if remains == "nothing":
            self._forget(job)
        elif remains == "tasks":
            self._queue.put(job)
        return slot.threads == 1 or not slot.leave()

    def _forget(self, job: SingleJob) -> None:
        self._live.discard(job)
        if self._joining and not self._live:
            with self._lock:
                self._quiet.notify_all()

    def _initialize(self) -> bool:
        while self._broken is None:
            with self._starting:  # until one start has succeeded, one at a time
                if self._broken is None and not self._started and self._attempt():
                    return True
            if self._started and self._attempt():
                return True
        return False

    def _attempt(self) -> bool:
        try:
            self._config.initialize()
        except BaseException as error:
            logger.exception("The initializer of %r failed", self)
            with self._lock:
                self._failures += 1
                if self._failures >= _STARTS:
                    self._broken = error
            if self._broken is not None:
                self._abort(self._broken)
            return False
        self._failures = 0
        self._started = True
        return True

    def _abort(self, error: BaseException) -> None:
        """Fail all that has not ended."""
        for job in list(self._live):
            job.abort(error)
            self._forget(job)


_pools = Inherited(ThreadPool.leave_to_parent, once=True)


def _serve(
    reference: weakref.ref[ThreadPool], jobs: queue.SimpleQueue[SingleJob | None], slot: Slot
) -> None:
    """Work for a pool, which is not kept alive while there is nothing to do."""
    pool = reference()
    stays = pool is not None and pool.join_in(slot)
    while stays:
        del pool
        job = jobs.get()
        pool = reference()
        if pool is None:
            jobs.put(None)  # nobody closed it: the other threads are to leave too
            return
        stays = pool.serve(job, slot)
        del job  # nothing of a finished task is kept while there is no other
    if pool is not None:
        pool.leave()
