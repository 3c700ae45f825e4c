"""Receive what the workers say, and keep the accounts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from signal import SIGKILL
from typing import Any, NamedTuple

from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.pools import forwarding
from pparallel.runtime.pools.lots import Lot
from pparallel.runtime.pools.messages import DONE, FAILED, FORWARDED, READY, REPORT
from pparallel.runtime.pools.values import unread
from pparallel_process.accounts.crew import Crew
from pparallel_process.accounts.worker import Worker
from pparallel_process.engine.results import Report, Results
from pparallel_process.staff.staffing import Staffing
from pparallel_process.traffic.sending import Sender

_AT_ONCE = 8  #: messages taken from one worker before the others


class _Taken(NamedTuple):
    """What was taken in, and is followed up without the lock.

    Attributes:
        reports: results to be told.
        later: what else is to be done.
        hungry: workers that have ended a lot.
    """

    reports: list[Report]
    later: list[Callable[[], object]]
    hungry: list[Worker]


class Receiver:
    """Takes in what the workers say.

    Args:
        crew: the accounts.
        sender: who sends more to a worker that has ended a lot.
        serializer: what results were turned into bytes with.
        staffing: told of workers that have started, or could not, or have ended.
        check: looks after a worker that has ended a lot.
    """

    def __init__(
        self,
        crew: Crew,
        sender: Sender,
        serializer: Serializer,
        staffing: Staffing,
        check: Callable[[Worker], None],
    ) -> None:
        self._crew = crew
        self._sender = sender
        self._results = Results(crew, serializer)
        self._staffing = staffing
        self._check = check

    def receive(self, workers: Iterable[Worker]) -> bool:
        """Take in what *workers* have said; return whether there was anything."""
        taken = _Taken([], [], [])
        try:
            with self._crew.lock:
                for worker in list(workers):
                    self._take_from(worker, taken)
        except BaseException:  # Ctrl-C
            self._follow_up(taken)
            raise
        return self._follow_up(taken)

    def take_next(self, worker: Worker) -> Callable[[], bool] | None:
        """Take in the next message of *worker*; ``None``: there is none.

        Returns:
            What is to be called next; it returns whether that was the result of a single call.
        """
        with self._crew.lock:  # a message and its account are one: other threads receive too
            try:
                received = worker.channel.poll()
            except Exception as error:  # noqa: BLE001 - as below
                _give_up(worker, error)
                return None
            if received is None:
                return None
            message, files = received
            if message[0] == DONE:
                return self._finished(worker, message)
            taken = _Taken([], [], [])
            self._sort(worker, message, files, taken)

        def follow_up() -> bool:
            self._follow_up(taken)
            return False

        return follow_up

    def _finished(self, worker: Worker, message: tuple[Any, ...]) -> Callable[[], bool]:
        _, number, value, head, seconds = message
        crew = self._crew
        lot = worker.lots.get(number)
        if lot is None:
            return lambda: True
        crew.leave(worker, lot)
        lot.function.pace.learn(seconds, 1)
        crew.ledger.worked(worker.number, seconds, 1)
        crew.ledger.slow(worker.number, seconds, lambda: lot.described(0))
        return partial(self._hand_over, worker, lot, value, head)

    def _hand_over(self, worker: Worker, lot: Lot, value: Any, head: bytes | None) -> bool:
        try:
            self._feed(worker)
        finally:
            self._results.tell_one(worker, lot, value, head)
        return True

    def _follow_up(self, taken: _Taken) -> bool:
        reports, later, hungry = taken
        found = bool(reports or later)
        try:
            for worker in hungry:
                self._feed(worker)
        finally:
            try:
                self._results.tell_all(reports)
            finally:
                for each in later:
                    each()
        return found

    def _feed(self, worker: Worker) -> None:
        self._check(worker)
        if worker.is_retiring:
            self._staffing.retire(worker)
        elif worker.queue:
            self._sender.fill(worker)

    def _take_from(self, worker: Worker, taken: _Taken) -> None:
        try:
            self._take(worker, taken)
        except Exception as error:  # noqa: BLE001 - one message that cannot be read costs one worker
            _give_up(worker, error)
        except BaseException:  # Ctrl-C: what it had just said may be lost
            worker.process.signal(SIGKILL)
            raise

    def _take(self, worker: Worker, taken: _Taken) -> None:
        for _ in range(_AT_ONCE):
            if worker.is_gone:
                return
            try:
                received = worker.channel.receive()
            except EOFError:
                worker.is_gone = True
                taken.later.append(partial(self._staffing.ended, worker))
                return
            if received is None:
                return
            self._sort(worker, *received, taken)
            if taken.hungry and taken.hungry[-1] is worker and not worker.lots:
                return  # it has nothing more to say, most likely

    def _sort(
        self, worker: Worker, message: tuple[Any, ...], files: list[int], taken: _Taken
    ) -> None:
        if message[0] == DONE:
            _, number, value, head, seconds = message
            entry = value if head is None else (head, 0)
            message = (REPORT, number, 0, [entry], head is not None, None, (seconds, seconds, 0))
        if message[0] != REPORT:
            taken.later.append(partial(self._note, worker, message, files))
            return
        report = self._account(worker, message, files)
        if report is not None:
            taken.reports.append(report)
        if message[-1] is not None:
            taken.hungry.append(worker)

    def _note(self, worker: Worker, message: tuple[Any, ...], files: list[int]) -> None:
        """Take in what says nothing of tasks."""
        kind, *content = message
        if kind == FORWARDED:
            worker.log.append(forwarding.replay(content[0], worker.name))
        elif kind == READY:
            self._staffing.welcome(worker, files)
        elif kind == FAILED:
            self._staffing.failed(worker, self._results.error(worker, content[0]))

    def _account(self, worker: Worker, message: tuple[Any, ...], files: list[int]) -> Report | None:
        _, number, first, entries, coded, errors, end = message
        lot = worker.lots.get(number)
        if lot is None:
            return None
        reported = lot.reported = first + len(entries)
        if end is not None:
            seconds, slowest, place = end
            crew = self._crew
            crew.leave(worker, lot)
            if reported < lot.limit:
                crew.give_back(worker, lot, reported, lot.limit)
            if reported:
                lot.function.pace.learn(seconds, reported)
            crew.ledger.worked(worker.number, seconds, reported)
            if slowest:
                crew.ledger.slow(worker.number, slowest, lambda: lot.described(place))
        worker.untold += 1
        return Report(worker, lot, first, entries, coded, errors or {}, files)


def _give_up(worker: Worker, error: Exception) -> None:
    worker.doom = worker.doom or unread("a worker's report", error)
    worker.process.signal(SIGKILL)
