"""Receive what the workers say, and tell the sinks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from signal import SIGKILL
from typing import Any, NamedTuple

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import remote_errors
from pparallel_process.accounts.crew import Crew
from pparallel_process.accounts.lots import Lot
from pparallel_process.accounts.worker import Worker
from pparallel_process.staff.staffing import Staffing
from pparallel_process.telling import forwarding
from pparallel_process.traffic.sending import Sender
from pparallel_process.wire.channel import DONE, FAILED, FORWARDED, READY, RECEIVED, REPORT
from pparallel_process.wire.values import unread

logger = logging.getLogger(__name__)

_AT_ONCE = 8  #: messages taken from one worker before the others


class _Report(NamedTuple):
    """Results that have arrived and were not told yet."""

    worker: Worker
    lot: Lot
    first: int
    entries: list[Any]
    coded: bool
    errors: dict[int, Any]
    files: list[int]


class _Taken(NamedTuple):
    """What was taken in, and is followed up without the lock.

    Attributes:
        reports: results to be told.
        later: what else is to be done.
        hungry: workers that have ended a lot.
    """

    reports: list[_Report]
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
        self._serializer = serializer
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
            received = worker.channel.poll()
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
        crew = self._crew
        self._feed(worker)
        job, _ = lot.task(0)
        try:
            if head is not None:
                value = self._loaded(worker, head, ())
            job.sink.done(0, (value,))
        except SerializationError as error:
            job.sink.failed(0, error)
        except BaseException as error:  # Ctrl-C
            job.sink.abort(error)
            raise
        finally:
            with crew.lock:
                crew.count(lot, 0, 1)
        return True

    def _follow_up(self, taken: _Taken) -> bool:
        reports, later, hungry = taken
        found = bool(reports or later)
        try:
            for worker in hungry:
                self._feed(worker)
        finally:
            try:
                self._tell_all(reports)
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

    def _tell_all(self, reports: list[_Report]) -> None:
        while reports:
            report = reports.pop(0)
            try:
                self._tell(report)
            except BaseException as error:  # Ctrl-C, perhaps while a sink was told
                for job in report.lot.jobs():
                    job.sink.abort(error)
                self._tell_all(reports)
                raise

    def _take_from(self, worker: Worker, taken: _Taken) -> None:
        try:
            self._take(worker, taken)
        except Exception as error:  # noqa: BLE001 - one message that cannot be read costs one worker
            worker.doom = worker.doom or unread("a worker's report", error)
            worker.process.signal(SIGKILL)
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
            self._staffing.failed(worker, self._unpacked(worker, content[0]))

    def _account(
        self, worker: Worker, message: tuple[Any, ...], files: list[int]
    ) -> _Report | None:
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
        return _Report(worker, lot, first, entries, coded, errors or {}, files)

    def _tell(self, report: _Report) -> None:
        worker, lot, first, entries, coded, errors, _ = report
        try:
            if coded or errors:
                self._tell_each(report)
            elif entries:
                lot.done(first, entries)
        finally:
            with self._crew.lock:
                worker.untold -= 1
                if coded and worker.keeps:
                    worker.unthanked += sum(type(each) is tuple for each in entries)
                    self._thank(worker)
                self._crew.count(lot, first, first + len(entries))

    def _thank(self, worker: Worker) -> None:
        """Have *worker* let go of the results that have arrived: they are the first it keeps."""
        # Another thread may be about to read what came before.
        thanks = 0 if worker.untold else worker.unthanked
        if thanks and worker.channel.try_to_send((RECEIVED, thanks)):
            worker.unthanked = 0

    def _tell_each(self, report: _Report) -> None:
        worker, lot, first, entries, _, errors, files = report
        values: list[Any] = []
        start = first
        for place, entry in enumerate(entries, first):
            error: BaseException | None = None
            if place in errors:
                error = self._unpacked(worker, errors[place])
            elif type(entry) is tuple:
                head, count = entry
                try:
                    values.append(self._loaded(worker, head, files[:count]))
                except SerializationError as refused:
                    error = refused
                finally:
                    del files[:count]
            else:
                values.append(entry)
            if error is not None:
                if values:
                    lot.done(start, values)
                values, start = [], place + 1
                job, index = lot.task(place)
                job.sink.failed(index, error)
        if values:
            lot.done(start, values)

    def _loaded(self, worker: Worker, head: bytes, files: Sequence[int]) -> Any:
        try:
            return self._serializer.loads(worker.parcels.unpack(head, files))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - hooks of its class
            refused = unread("a result", error)
            raise refused from refused.__cause__

    def _unpacked(self, worker: Worker, envelope: Any) -> BaseException:
        return remote_errors.unpack(
            envelope, worker.name, self._serializer, exits=True, kind="worker"
        )
