"""Jobs in the order in which they came, and how lots are cut from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pparallel.runtime.pools.jobs import Job
from pparallel.runtime.pools.lots import CallLot, Lot, MapLot
from pparallel.runtime.pools.paces import TARGET, WHOLE


class JobQueue:
    """Jobs in the order in which they were handed over, for one worker or for several.

    Args:
        workers: how many workers take from it.
        dropped: told of jobs of which nothing more will be sent, for nobody wants it.
    """

    def __init__(self, workers: int, dropped: Callable[[Job], None]) -> None:
        self._workers = workers
        self._dropped = dropped
        self._jobs: deque[Job] = deque()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def append(self, job: Job) -> None:
        """Have *job* done after those before it."""
        self._jobs.append(job)

    def give_back(self, lot: Lot, first: int, end: int) -> None:
        """Have the tasks of *lot* at these places, which did not start, done before all others."""
        if first >= end:
            return
        lot.give_back(first, end)
        jobs = dict.fromkeys(lot.task(place)[0] for place in range(first, end))
        for job in reversed(jobs):
            if job not in self._jobs:
                self._jobs.appendleft(job)

    def take(self, *, most: int, idle: bool) -> Lot | None:
        """Return tasks to send to a worker, if there are some for it.

        Args:
            most: how many tasks the worker may run.
            idle: it has nothing to do; otherwise nobody may watch the tasks.
        """
        jobs = self._jobs
        while jobs:
            job = jobs[0]
            if not job.waiting or not job.begin():
                jobs.popleft()
                self._drop(job)
                continue
            if job.sink.observed:
                if not idle:
                    return None
                return MapLot(job, self._taken(job, 1))
            pace = job.function.pace
            if job.is_call:
                return self._calls(min(most, pace.lot(len(jobs), self._workers, 1)))
            target = TARGET if job.is_prompt else WHOLE
            size = pace.lot(job.waiting, self._workers, job.batch.chunksize or 1, target)
            return MapLot(job, self._taken(job, min(most, size)))
        return None

    def take_over(self, other: JobQueue) -> None:
        """Have what waits in *other* done, after what waits here."""
        self._jobs.extend(other._jobs)
        other._jobs.clear()

    def clear(self) -> None:
        """Forget all jobs."""
        self._jobs.clear()

    def _drop(self, job: Job) -> None:
        job.drop()
        self._dropped(job)

    def _taken(self, job: Job, most: int) -> range:
        taken = job.take(most)
        if not job.waiting:
            self._jobs.popleft()
        return taken

    def _calls(self, most: int) -> CallLot:
        jobs, calls = self._jobs, [self._jobs.popleft()]
        calls[0].take(1)
        pace = calls[0].function.pace
        while len(calls) < most and jobs and jobs[0].is_call and jobs[0].function.pace is pace:
            job = jobs.popleft()
            if job.waiting and job.begin():
                job.take(1)
                calls.append(job)
            else:
                self._drop(job)
        return CallLot(calls)
