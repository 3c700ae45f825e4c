"""Tasks that wait behind a long one are taken back, for workers that have nothing to do."""

from __future__ import annotations

from time import monotonic

from pparallel.runtime.pools.board import Place
from pparallel_ray.pool.accounts.crew import Crew
from pparallel_ray.pool.accounts.worker import Worker
from pparallel_ray.pool.wire.orders import RECALL

_STALLED = 0.005  #: seconds after which tasks behind a long one are asked back
_AGAIN = 0.1  #: seconds after which they are asked back again


class Oversight:
    """Asks tasks back; called by the dispatcher.

    A supervisor shares memory with its worker: there it sees what has started, and says that
    nothing more is to start, whatever the worker is doing.

    Args:
        crew: the accounts.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def look(self) -> float | None:
        """Ask back what is held up; return in how many seconds to look again."""
        if not self._stalls():
            return None
        now = monotonic()
        for worker in self._crew.workers.values():
            if self._holds_up(worker) and now - worker.recalled >= _AGAIN:
                lots = list(worker.lots.values())
                if now - lots[0].sent >= _STALLED:
                    self._recall(worker, lots[-1].number)
                    worker.recalled = now
        return _STALLED

    def placed(self, worker: Worker, recalled: int, place: Place) -> bool:
        """Take in where *worker* was when it was told to start no more of the lots up to a number.

        Returns:
            Whether there are tasks for others.
        """
        found = False
        lots = [each for each in worker.lots.values() if each.number <= recalled]
        for lot in reversed(lots):
            if lot.number < place.lot:
                continue  # it has ended, and its report is on the way
            started = place.first + place.span if lot.number == place.lot else 0
            self._crew.give_back(lot, started, lot.limit)
            found = found or started < lot.limit
            lot.limit = min(lot.limit, started)
        return found

    def _stalls(self) -> bool:
        """Return whether tasks wait behind others at one worker while another is idle."""
        crew = self._crew
        if crew.queue:
            return False
        serving = [each for each in crew.workers.values() if each.serves]
        if all(each.lots for each in serving):
            return False
        return any(map(self._holds_up, crew.workers.values()))

    def _holds_up(self, worker: Worker) -> bool:
        if worker.end is not None or not worker.lots:
            return False
        waiting = sum(each.limit - each.reported for each in worker.lots.values()) > 1
        job, _ = next(iter(worker.lots.values())).task(0)
        return waiting and not job.sink.observed  # those are sent one by one

    def _recall(self, worker: Worker, lot: int) -> None:
        try:
            worker.link.control.send((RECALL, lot))
        except OSError:  # its supervisor is gone, and what it has is lost or done by others
            worker.recalled = monotonic()
