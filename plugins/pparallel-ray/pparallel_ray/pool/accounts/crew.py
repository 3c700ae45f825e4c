"""The accounts of one pool: who has what, what waits, and what has not ended."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from pparallel.runtime.pools.job_queue import JobQueue
from pparallel.runtime.pools.jobs import Job
from pparallel.runtime.pools.lots import Lot
from pparallel_ray.pool.accounts.worker import Worker
from pparallel_ray.pool.config import RayPoolConfig

_LOTS = 2  #: at a worker at once: one runs, one waits
_UNLIMITED = 1 << 30


class Crew:
    """The workers and the tasks of one pool.

    The dispatcher alone calls the methods, but for :meth:`append`, :meth:`abandon` and those that
    wait.

    Args:
        config: the pool's.

    Attributes:
        lock: held where other threads look: by whoever takes tasks, gives them up, or sends some.
        quiet: of the lock; told when no task is left.
        live: jobs with tasks that have not been reported.
        queue: where tasks wait.
        workers: by place; one that is being started is not among them.
        is_over: nothing is taken any more.
    """

    def __init__(self, config: RayPoolConfig) -> None:
        self.config = config
        self.size = config.workers
        self.lock = threading.RLock()
        self.quiet = threading.Condition(self.lock)
        self.live: set[Job] = set()
        self.queue = JobQueue(self.size, lambda job: self._settle((job,)))
        self.workers: dict[int, Worker] = {}
        self.is_over = False
        self._arrived: deque[Job] = deque()
        self._number = 0

    def append(self, job: Job) -> None:
        """Have *job* done after those before it; called with the lock held."""
        self.live.add(job)
        self._arrived.append(job)

    @property
    def has_arrivals(self) -> bool:
        """Whether something was appended that :meth:`welcome` has not seen."""
        return bool(self._arrived)

    def welcome(self) -> bool:
        """Have what was appended wait for workers; return whether anything waits."""
        while self._arrived:
            self.queue.append(self._arrived.popleft())
        return bool(self.queue)

    def takers(self) -> list[Worker]:
        """Return the workers that may be sent something, the idle ones first."""
        found = [each for each in self.workers.values() if self._may_have(each)]
        found.sort(key=lambda each: len(each.lots))
        return found

    def take(self, worker: Worker) -> Lot | None:
        """Return what *worker* is to be sent next."""
        if not self.queue or not self._may_have(worker):
            return None
        limit = self.config.max_tasks
        most = _UNLIMITED if limit is None else limit - worker.tasks
        lot = self.queue.take(most=most, idle=not worker.lots)
        if lot is not None:
            self._number += 1
            lot.number = self._number
        return lot

    def enter(self, worker: Worker, lot: Lot) -> None:
        """Note that *worker* is sent *lot*."""
        worker.lots[lot.number] = lot
        worker.tasks += lot.size
        limit = self.config.max_tasks
        if limit is not None and worker.tasks >= limit:
            worker.is_retiring = True

    def cut(self, lot: Lot, size: int) -> None:
        """Have only the first *size* tasks of *lot* sent, the others next."""
        self.queue.give_back(lot, size, lot.size)
        lot.cut(size)

    def give_back(self, lot: Lot, first: int, end: int) -> None:
        """Have the tasks of *lot* at these places, which have not started, done next."""
        if not self.is_over:
            self.queue.give_back(lot, first, end)

    def count(self, lot: Lot, first: int, end: int) -> None:
        """Note that the tasks of *lot* at these places were reported."""
        with self.lock:
            lot.count(first, end)
            self._settle(lot.jobs())

    def abandon(self) -> set[Job]:
        """Forget all tasks, for good; return the jobs that had some left."""
        with self.lock:
            self.is_over = True
            live, self.live = self.live, set()
            self._arrived.clear()
            self.quiet.notify_all()
        return live

    def reset(self) -> None:
        """Have nothing, in a fork: whoever held the lock is not in this process."""
        self.lock = threading.RLock()
        self.quiet = threading.Condition(self.lock)
        self.abandon()

    def _may_have(self, worker: Worker) -> bool:
        lots = worker.lots
        if not worker.serves or len(lots) >= _LOTS or self.is_over:
            return False
        return not lots or all(each.function.pace.is_quick(each.size) for each in lots.values())

    def _settle(self, jobs: Iterable[Job]) -> None:
        with self.lock:
            for job in jobs:
                if job.left <= 0:
                    self.live.discard(job)
            if not self.live:
                self.quiet.notify_all()
