"""The accounts of one pool: who has what, what waits, and what has not ended."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from pparallel.interfaces.pool import Batch, Sink
from pparallel.runtime.pools.functions import Function
from pparallel.runtime.pools.job_queue import JobQueue
from pparallel.runtime.pools.jobs import Job
from pparallel.runtime.pools.lots import Lot
from pparallel_process.accounts.dealt import DealtJobs
from pparallel_process.accounts.worker import Worker
from pparallel_process.config import IsolatedPoolConfig
from pparallel_process.telling.insights import Ledger

_LOTS = 2  #: at a worker at once: one runs, one waits
_UNLIMITED = 1 << 30


class Crew:
    """The workers and the tasks of one pool. Its methods are called with the lock held.

    Args:
        config: the pool's.
        dealt: tasks are dealt to the workers in turn, else each goes to one that is idle.

    Attributes:
        is_dealt: each worker has tasks of its own.
        lock: held for accounts only: never while something is serialised or sent, or while a sink
            is told of results. Sinks are asked under it whether their tasks may start.
        quiet: of the lock; told when no task is left.
        queues: where tasks wait: one for each worker, or one for all.
        live: jobs with tasks that have not been reported.
        workers: those that run, one per place.
        busy: those of them that have lots.
        leaving: workers that were replaced and may not have ended yet.
        express: who runs a single call while nothing else goes on.
        is_over: nothing is taken any more.
        ledger: what the workers did.
    """

    def __init__(self, config: IsolatedPoolConfig, *, dealt: bool) -> None:
        self.config = config
        self.size = config.workers
        self.lock = threading.RLock()
        self.quiet = threading.Condition(self.lock)
        self.live: set[Job] = set()
        self.is_dealt = dealt
        queues = self.size if dealt else 1
        self.queues = [JobQueue(self.size // queues, self._dropped) for _ in range(queues)]
        self.workers: dict[int, Worker] = {}
        self.busy: list[Worker] = []
        self.leaving: list[Worker] = []
        self.ledger = Ledger()
        self.express: Worker | None = None
        self.is_over = False
        self._turn = 0
        self._number = 0

    def queue_of(self, worker: int) -> JobQueue:
        """Return where the tasks of the worker at that place wait."""
        return self.queues[worker % len(self.queues)]

    def append(self, batch: Batch, sink: Sink, function: Function) -> None:
        """Have *batch* done after those before it."""
        tasks, queues = len(batch.items), self.queues
        if len(queues) == 1:
            job = Job(batch, sink, function, range(tasks))
            self.live.add(job)
            queues[0].append(job)
            return
        for turn, part in enumerate(DealtJobs(batch, sink, function).parts(tasks, len(queues))):
            self.live.add(part)
            queues[(self._turn + turn) % len(queues)].append(part)
        self._turn = (self._turn + tasks) % len(queues)

    def takers(self) -> list[Worker]:
        """Return the workers that may be sent something that waits, the idle ones first."""
        found = [each for each in self.workers.values() if self.may_have(each)]
        if len(found) > 1:
            found.sort(key=lambda each: len(each.lots))
        return found

    def may_have(self, worker: Worker) -> bool:
        """Return whether *worker* may be sent something that waits."""
        if not (worker.queue and self._may_serve(worker)):
            return False
        lots = worker.lots
        if not lots:
            return True
        if len(lots) >= _LOTS:
            return False
        (lot,) = lots.values()
        return lot.function.pace.is_quick(lot.size)

    def take(self, worker: Worker) -> Lot | None:
        """Return what *worker* is to be sent next; it is then being filled."""
        if not self.may_have(worker):
            return None
        limit = self.config.max_tasks
        most = _UNLIMITED if limit is None else limit - worker.tasks
        lot = worker.queue.take(most=most, idle=not worker.lots)
        if lot is not None:
            lot.number = self.next_number()
            worker.is_being_filled = True
        return lot

    def next_number(self) -> int:
        """Return the number of a new lot."""
        self._number += 1
        return self._number

    def spare(self, function: int) -> Worker | None:
        """Return a worker that has nothing to do, while nothing waits, and knows *function*."""
        for worker in self.workers.values():
            if not worker.lots and function in worker.known and self._may_serve(worker):
                return None if worker.queue else worker
        return None

    def serves(self, worker: Worker) -> bool:
        """Return whether what *worker* is sent now will be run or missed."""
        return not worker.is_gone and self.workers.get(worker.number) is worker

    def _may_serve(self, worker: Worker) -> bool:
        if worker.is_being_filled or worker.is_retiring:
            return False
        return worker.is_ready and self.serves(worker)

    def enter(self, worker: Worker, lot: Lot) -> None:
        """Note that *worker* is about to be sent *lot*."""
        if not worker.lots:
            self.busy.append(worker)
        worker.lots[lot.number] = lot
        worker.tasks += lot.size
        limit = self.config.max_tasks
        if limit is not None and worker.tasks >= limit:
            worker.is_retiring = True

    def leave(self, worker: Worker, lot: Lot) -> None:
        """Note that *worker* has nothing more to do with *lot*."""
        if worker.lots.pop(lot.number, None) is None:
            return
        worker.heads.pop(lot.number, None)
        worker.served = True
        if not worker.lots:
            self.busy.remove(worker)

    def cut(self, worker: Worker, lot: Lot, size: int) -> None:
        """Have only the first *size* tasks of *lot* sent, the others next."""
        worker.queue.give_back(lot, size, lot.size)
        lot.cut(size)

    def give_back(self, worker: Worker, lot: Lot, first: int, end: int) -> None:
        """Have the tasks of *lot* at these places, which have not started, done next."""
        if self.live:
            worker.queue.give_back(lot, first, end)

    def pass_on(self, worker: Worker) -> bool:
        """Give what was dealt to *worker*, which is held up, to an idle one, if there is one."""
        if self.is_dealt and worker.queue:
            for heir in self.workers.values():
                if not heir.lots and not heir.queue and self._may_serve(heir):
                    heir.queue.take_over(worker.queue)
                    return True
        return False

    def count(self, lot: Lot, first: int, end: int) -> None:
        """Note that the tasks of *lot* at these places were reported."""
        lot.count(first, end)
        self._settle(lot.jobs())

    def reset(self) -> None:
        """Have nothing, in a fork: whoever held the lock is not in this process."""
        self.lock = threading.RLock()
        self.quiet = threading.Condition(self.lock)
        self.abandon()

    def abandon(self) -> set[Job]:
        """Forget all tasks, for good; return the jobs that had some left."""
        self.is_over = True
        live, self.live = self.live, set()
        for queue in self.queues:
            queue.clear()
        with self.lock:
            self.quiet.notify_all()
        return live

    def _dropped(self, job: Job) -> None:
        self._settle((job,))

    def _settle(self, jobs: Iterable[Job]) -> None:
        live = self.live
        for job in jobs:
            if job.left <= 0:
                live.discard(job)
        if not live:
            self.quiet.notify_all()
