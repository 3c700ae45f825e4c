"""What is looked at now and then: tasks that take too long, and workers that have grown."""

from __future__ import annotations

from signal import SIGKILL
from time import monotonic

from pparallel.errors import TaskTimeoutError
from pparallel.runtime.pools.board import Board
from pparallel_process.accounts.crew import Crew
from pparallel_process.accounts.worker import Worker
from pparallel_process.staff.staffing import Staffing
from pparallel_process.telling import stacks
from pparallel_process.traffic.sending import Sender

_STALLED = 0.005  #: seconds after which tasks behind a long one are given to idle workers
_LOOK = 0.1  #: seconds between looks when nothing is due
_DUMP = 0.2  #: seconds that a worker has to say where it is before it is killed
_RSS = 0.05  #: seconds between looks at the memory of a worker that is busy


class Oversight:
    """Looks after tasks and workers that say nothing."""

    def __init__(self, crew: Crew, board: Board, sender: Sender, staffing: Staffing) -> None:
        self._crew = crew
        self._board = board
        self._sender = sender
        self._staffing = staffing
        self._timeout = crew.config.task_timeout
        self._max_rss = crew.config.max_rss

    def due(self) -> float | None:
        """Return in how many seconds to look; ``None``: there is nothing to look after."""
        crew = self._crew
        with crew.lock:
            waits = crew.leaving or self._staffing.missing or self._max_rss is not None
            soonest = _LOOK if waits else None
            if self._timeout is not None and crew.busy:
                left = max(0.001, min(map(self._time_left, crew.busy)))
                soonest = left if soonest is None else min(soonest, left)
            if self.stalls():
                soonest = _STALLED if soonest is None else min(soonest, _STALLED)
        return soonest

    def look(self) -> None:
        """Do what is due."""
        crew = self._crew
        if self._timeout is not None:
            with crew.lock:
                late = [each for each in crew.busy if self._time_left(each) <= 0 and not each.doom]
            for worker in late:
                self._end(worker, self._timeout)
        if crew.leaving:
            self._staffing.hurry()
        if self._staffing.missing:
            self._staffing.refill()
        if self._max_rss is not None:
            self._check_idle()
        with crew.lock:
            recalled = self._recall() if self.stalls() else False
        if recalled:
            self._sender.fill_all()

    def check_memory(self, worker: Worker) -> None:
        """Have *worker* retire if it has taken too much memory."""
        now = monotonic()
        if self._max_rss is None:
            return
        if worker.lots and now - worker.checked <= _RSS:
            return  # soon again; one that is idle now may have nothing to say any more
        worker.checked = now
        if worker.served and worker.own_memory() - worker.baseline >= self._max_rss:
            worker.is_retiring = True

    def _check_idle(self) -> None:
        with self._crew.lock:
            idle = [each for each in self._crew.workers.values() if not each.lots]
        for worker in idle:
            self.check_memory(worker)
            if worker.is_retiring:
                self._staffing.retire(worker)

    def _time_left(self, worker: Worker) -> float:
        assert self._timeout is not None
        # In this order: the worker writes when a task starts before it writes which.
        lot = self._board.place(worker.number).lot
        since = self._board.since(worker.number)
        if not since or lot not in worker.lots:
            return min(_LOOK, self._timeout)
        return since + self._timeout - monotonic()

    def _end(self, worker: Worker, timeout: float) -> None:
        with self._crew.lock:
            place = self._board.place(worker.number)
            lot = worker.lots.get(place.lot)
            if lot is None or self._time_left(worker) > 0:
                return  # it has ended meanwhile
            what = f"{lot.described(place.first)}, run by {worker.name},"
            worker.doom = TaskTimeoutError(what, timeout)
            # From here on it starts nothing, and what it says is not heard: the signal that has it
            # write its stacks may end the call into the system that the task is waiting in.
            worker.is_gone = True
            self._board.recall(worker.number, max(worker.lots))
        where = stacks.dump(worker.process, worker.dumps, _DUMP)
        worker.doom.add_note(f"It was ended while it was here:\n{where}")
        worker.process.signal(SIGKILL)

    def stalls(self) -> bool:
        """Return whether tasks wait behind others at one worker while another is idle."""
        crew = self._crew
        with crew.lock:
            if len(crew.busy) == len(crew.workers) or (not crew.is_dealt and crew.queues[0]):
                return False
            return any(map(self._holds_up, crew.busy))

    def _holds_up(self, worker: Worker) -> bool:
        return _has_waiting(worker) or (self._crew.is_dealt and bool(worker.queue))

    def _recall(self) -> bool:
        """Take tasks back from workers that seem to be held up; return whether there were any."""
        now, found = monotonic(), False
        for worker in self._crew.busy:
            lots = list(worker.lots.values())
            if not self._holds_up(worker) or now - lots[0].sent < _STALLED:
                continue
            job, _ = lots[0].task(0)
            if job.sink.observed and self._board.place(worker.number).lot < lots[0].number:
                continue  # its start was told, and is only late
            self._board.recall(worker.number, lots[-1].number)
            place = self._board.place(worker.number)
            for lot in reversed(lots):
                if lot.number < place.lot:
                    continue  # it has ended, and its report is on the way
                started = place.first + place.span if lot.number == place.lot else 0
                self._crew.give_back(worker, lot, started, lot.limit)
                found = found or started < lot.limit
                lot.limit = min(lot.limit, started)
            found = self._crew.pass_on(worker) or found
        return found


def _has_waiting(worker: Worker) -> bool:
    return sum(each.limit - each.reported for each in worker.lots.values()) > 1
