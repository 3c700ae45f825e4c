"""What is lost with a worker, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator

from pparallel.errors import TaskTimeoutError, WorkerLostError
from pparallel.runtime.pools import deaths
from pparallel.runtime.pools.fates import Fate, fate
from pparallel.runtime.pools.lots import Lot
from pparallel_ray.pool.accounts.crew import Crew
from pparallel_ray.pool.accounts.worker import End, Worker

Lost = tuple[Lot, int, BaseException]  #: a task by its lot and place, and its error


class Losses:
    """Sees what was lost with a worker, and has run again what may be.

    Args:
        crew: the accounts.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def of(self, worker: Worker, end: End) -> list[Lost]:
        """Return what is lost with *worker* for good; the rest is done by others."""
        lost: list[Lost] = []
        for lot in reversed(list(worker.lots.values())):
            del worker.lots[lot.number]
            if end.place is None:  # nobody knows what it had begun
                found = Fate(lot, lot.reported, lot.limit)
            else:
                found = fate(lot, end.place)
            self._crew.give_back(lot, found.waiting, lot.limit)
            lost.extend(self._lost(worker, end, found))
        return [each for each in lost if not self._retry(*each)]

    def tell(self, lost: list[Lost]) -> None:
        """Report what is lost."""
        for lot, place, why in lost:
            if self._crew.is_over:  # terminated: whoever did that tells the jobs
                return
            job, index = lot.task(place)
            job.sink.failed(index, why)
            self._crew.count(lot, place, place + 1)

    def _lost(self, worker: Worker, end: End, found: Fate) -> Iterator[Lost]:
        lot, running, waiting = found
        alone, timeout = waiting - running == 1, self._crew.config.task_timeout
        for place in range(lot.reported, waiting):
            task = lot.described(place)
            if end.was_late and timeout is not None and place >= running:
                yield lot, place, TaskTimeoutError(f"{task}, run by {worker.name},", timeout)
                continue
            if end.place is None:
                what = f"and may have begun {task}"
            elif place < running:
                what = f"and had not reported {task} yet"
            else:
                what = f"and ran {task}" if alone else f"and ran {task} or one beside it"
            yield lot, place, explained(worker, end, what)

    def _retry(self, lot: Lot, place: int, error: BaseException) -> bool:
        job, index = lot.task(place)
        tries = job.tries.get(index, 0)
        if not isinstance(error, WorkerLostError) or tries >= self._crew.config.retries:
            return False
        job.tries[index] = tries + 1
        if job.sink.observed:
            job.sink.retried(index, error)
        self._crew.give_back(lot, place, place + 1)
        return True


def explained(worker: Worker, end: End, what: str) -> WorkerLostError:
    """Return the error of what was lost with *worker*: *what* says how."""
    said = f"it was {worker.name} on {worker.link.host.address[0]} {what}"
    if end.why:
        said += f"; {end.why}"
    return deaths.explained(end.pid or worker.pid, end.how, said, worker.log)
