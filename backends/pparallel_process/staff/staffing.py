"""The workers' lives: who is started, who has died, who is replaced."""

from __future__ import annotations

import logging
import os
from signal import SIGKILL
from time import monotonic

from pparallel.errors import PparallelError, WorkerLostError
from pparallel.runtime.pools.board import Board
from pparallel.runtime.pools.fates import fate
from pparallel.runtime.pools.lots import Lot
from pparallel.runtime.pools.values import head_and_files
from pparallel.runtime.processes import Exit
from pparallel.runtime.resources import is_exhausted
from pparallel.runtime.shm import Arena
from pparallel_process.accounts.crew import Crew
from pparallel_process.accounts.worker import Worker
from pparallel_process.staff import recruiter
from pparallel_process.staff.losses import explained
from pparallel_process.staff.recruiter import Recruiter
from pparallel_process.traffic.polling import Polling
from pparallel_process.traffic.sending import Sender

logger = logging.getLogger(__name__)

_STARTS = 3  #: how often workers may fail to start, one after the other
_SHORT = 10.0  #: seconds for which a resource that workers need may be exhausted
_DEATH = 1.0  #: seconds that a process has to be gone once its channel has ended
_FAREWELL = 5.0  #: seconds that a worker which is replaced has to end


class Staffing:
    """Starts workers, and replaces those that have died or served long enough.

    Args:
        crew: the accounts.
        recruiter: who starts a worker.
        polling: where workers are waited for.
        board: where workers write what they run.
        arena: where the pool puts what it sends; ``None``: there is none.
        sender: who sends what waits to a worker that is new.

    Attributes:
        broken: why no worker can be started; ``None``: they can.
        missing: places whose worker could not be started for want of a resource.
    """

    def __init__(
        self,
        crew: Crew,
        recruiter: Recruiter,
        polling: Polling,
        board: Board,
        arena: Arena | None,
        sender: Sender,
    ) -> None:
        self._crew = crew
        self._recruiter = recruiter
        self._polling = polling
        self._board = board
        self._arena = arena
        self._sender = sender
        self._failures = 0
        self._changing: set[int] = set()  # places whose worker is being buried or started
        self._is_closed = self._is_ending = False
        self.broken: BaseException | None = None
        self.missing: set[int] = set()
        self._short_since: float | None = None

    def start_all(self) -> None:
        """Start the workers; of those that may fail only a few, until one has not."""
        careful = self._crew.config.initializer is not None
        for number in range(min(self._crew.size, _STARTS) if careful else self._crew.size):
            self._start(number)

    def welcome(self, worker: Worker, files: list[int]) -> None:
        """Take in that *worker* has started."""
        crew = self._crew
        try:
            with crew.lock:
                if crew.workers.get(worker.number) is not worker:  # it has died meanwhile
                    for each in files:
                        os.close(each)
                    return
                for each in files:
                    self._recruiter.welcome(worker, each)
                self._failures, self._short_since = 0, None
                worker.is_ready = True
                if crew.config.max_rss is not None:
                    worker.baseline = worker.own_memory()
                crew.ledger.ready(worker.number)
                missing = [each for each in range(crew.size) if each not in crew.workers]
        except OSError as error:
            self.failed(worker, error)
            return
        self._sender.fill(worker)
        for number in missing:
            self._replace(number)

    def failed(self, worker: Worker, error: BaseException) -> None:
        """Take in that *worker* could not start because of *error*."""
        logger.info("%s could not start: %s: %s", worker.name, type(error).__name__, error)
        if self._leave(worker):
            self._count_failure(worker.number, error)

    def ended(self, worker: Worker) -> None:
        """Take in that the channel or the process of *worker* has ended."""
        crew = self._crew
        with crew.lock:
            worker.is_gone = True
            died = crew.workers.get(worker.number) is worker
            if died:
                del crew.workers[worker.number]
                self._changing.add(worker.number)
            left = worker in crew.leaving and worker.process.ended(0) is not None
            if left:
                crew.leaving.remove(worker)
        if died:
            self._bury(worker)
        else:
            self._polling.mute(worker)
            if left:
                self._polling.forget(worker)
                worker.release()

    def retire(self, worker: Worker) -> None:
        """Have another worker take the place of *worker*, which has ended its last task."""
        with self._crew.lock:
            if self._crew.workers.get(worker.number) is not worker or worker.lots:
                return
            self._leave(worker)
        self._replace(worker.number)

    def refill(self) -> None:
        """Try again to start the workers that are missing."""
        missing, self.missing = self.missing, set()
        for number in missing:
            self._replace(number)

    def kill_all(self) -> None:
        """End all workers by force, for good."""
        self._is_ending = True
        with self._crew.lock:
            for worker in self._crew.workers.values():
                worker.process.signal(SIGKILL)

    def hurry(self) -> None:
        """End workers that were replaced and should have ended."""
        with self._crew.lock:
            late = [each for each in self._crew.leaving if monotonic() - each.left > _FAREWELL]
        for worker in late:
            worker.process.signal(SIGKILL)

    def close(self, patience: float) -> None:
        """End all workers; they have *patience* seconds to do so by themselves."""
        with self._crew.lock:
            self._is_closed = self._is_ending = True
            workers = [*self._crew.workers.values(), *self._crew.leaving]
            self._crew.workers.clear()
            self._crew.leaving.clear()
        for worker in workers:
            self._polling.forget(worker)
            worker.channel.finish()
        try:
            recruiter.end(workers, patience)
        finally:
            for worker in workers:
                self._crew.ledger.ended(worker.number)
                worker.release()

    def leave_to_parent(self) -> None:
        """Give the workers' descriptors back, in a fork: they are not this process's workers."""
        self._is_closed = self._is_ending = True
        for worker in [*self._crew.workers.values(), *self._crew.leaving]:
            worker.release()
        self._crew.workers.clear()

    def _start(self, number: int) -> None:
        worker = self._recruiter.start(number, self._crew.queue_of(number))
        self._crew.ledger.started(number, worker.process.pid, worker.name)
        with self._crew.lock:
            self._changing.discard(number)
            if not self._is_closed:
                self._crew.workers[number] = worker
                self._polling.watch(worker)
                return
        worker.channel.finish()
        recruiter.end([worker], 0.0)
        worker.release()

    def _replace(self, number: int) -> None:
        if self.broken is not None or self._is_ending:
            return
        with self._crew.lock:
            if number in self._crew.workers or number in self._changing:
                return
            self._changing.add(number)
        self._board.clear(number)
        try:
            self._start(number)
        except (OSError, MemoryError, RuntimeError, PparallelError) as error:
            self._changing.discard(number)
            logger.info("worker %d of a pool could not be started: %s", number, error)
            if not self._is_short(number, error):
                self._count_failure(number, error)

    def _is_short(self, number: int, error: BaseException) -> bool:
        """Return whether to try again later, as a resource is exhausted now."""
        if not is_exhausted(error):
            return False
        now = monotonic()
        if self._short_since is None:
            self._short_since = now
        if now - self._short_since > _SHORT:
            return False
        self.missing.add(number)
        return True

    def _count_failure(self, number: int, error: BaseException) -> None:
        with self._crew.lock:
            self._failures += 1
            live = set()
            if self._failures >= _STARTS:
                self.broken = error
                live = self._crew.abandon()
            starting = sum(not each.is_ready for each in self._crew.workers.values())
            again = self._failures + starting < _STARTS
        if self.broken is not None:
            for job in live:
                job.sink.abort(error)
        elif again:
            self._replace(number)

    def _leave(self, worker: Worker) -> bool:
        """Let *worker* go, which may have something to say still; return False if it has died."""
        with self._crew.lock:
            if self._crew.workers.get(worker.number) is not worker:
                return False
            del self._crew.workers[worker.number]
            self._crew.leaving.append(worker)
            worker.left = monotonic()
            self._crew.ledger.ended(worker.number)
        worker.channel.finish()
        return True

    def _bury(self, worker: Worker) -> None:
        try:
            end = worker.process.ended(_DEATH)
            if end is None:  # its code has closed the channel
                worker.process.signal(SIGKILL)
                end = worker.process.ended(_DEATH)
            self._polling.forget(worker)
            worker.channel.drop_unread()
            lost = self._take_stock(worker, end)
        finally:
            self._changing.discard(worker.number)  # a successor may have its words on the board
        if self._arena is not None:
            self._arena.reclaim(worker.process.pid)
        failed = [each for each in lost if not self._retry(worker, *each)]
        if worker.is_ready:
            if not self._is_ending:  # who lost something is told by its error
                level = logging.INFO if lost else logging.WARNING
                logger.log(level, "%s", worker.doom or explained(worker, end, "and was idle"))
            self._replace(worker.number)
        else:
            error = worker.doom or explained(worker, end, "and was starting")
            self._count_failure(worker.number, error)
        self._sender.fill_all()
        if self._crew.is_over:  # terminated: whoever did that tells the jobs
            failed = []
        for lot, place, why in failed:
            job, index = lot.task(place)
            job.sink.failed(index, why)
            with self._crew.lock:
                self._crew.count(lot, place, place + 1)
        worker.release()

    def _take_stock(self, worker: Worker, end: Exit | None) -> list[tuple[Lot, int, BaseException]]:
        """Have what *worker* did not start done by others; return what is lost with it, and why."""
        crew = self._crew
        lost: list[tuple[Lot, int, BaseException]] = []
        with crew.lock:
            crew.ledger.lost(worker.number)
            at = self._board.place(worker.number)
            for lot in reversed(list(worker.lots.values())):
                heads = worker.heads.get(lot.number, [])
                crew.leave(worker, lot)
                found = fate(lot, at)
                if found.waiting > found.running:
                    crew.ledger.worked(worker.number, monotonic() - lot.sent, 0)
                crew.give_back(worker, lot, found.waiting, lot.limit)
                for each in heads[found.running :]:
                    worker.parcels.drop(head_and_files(each)[0])
                alone = found.waiting - found.running == 1
                for place in range(lot.reported, found.waiting):
                    running, task = place >= found.running, lot.described(place)
                    ran = f"and ran {task}" if alone else f"and ran {task} or one beside it"
                    what = ran if running else f"and had not reported {task} yet"
                    error = (running and worker.doom) or explained(worker, end, what)
                    lost.append((lot, place, error))
        return lost

    def _retry(self, worker: Worker, lot: Lot, place: int, error: BaseException) -> bool:
        job, index = lot.task(place)
        tries = job.tries.get(index, 0)
        if not isinstance(error, WorkerLostError) or tries >= self._crew.config.retries:
            return False
        job.tries[index] = tries + 1
        if job.sink.observed:
            job.sink.retried(index, error)
        with self._crew.lock:
            self._crew.give_back(worker, lot, place, place + 1)
        return True
