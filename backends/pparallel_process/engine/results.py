"""Tell the sinks what the workers have returned."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import remote_errors
from pparallel.runtime.pools.lots import Lot
from pparallel.runtime.pools.messages import RECEIVED
from pparallel.runtime.pools.telling import tell_each
from pparallel.runtime.pools.values import unread
from pparallel_process.accounts.crew import Crew
from pparallel_process.accounts.worker import Worker


class Report(NamedTuple):
    """Results that have arrived and were not told yet."""

    worker: Worker
    lot: Lot
    first: int
    entries: list[Any]
    coded: bool
    errors: dict[int, Any]
    files: list[int]


class Results:
    """Passes on what has arrived, without the lock: several threads may do so at once.

    Args:
        crew: the accounts.
        serializer: what results were turned into bytes with.
    """

    def __init__(self, crew: Crew, serializer: Serializer) -> None:
        self._crew = crew
        self._serializer = serializer

    def tell_all(self, reports: list[Report]) -> None:
        """Tell of *reports*, of all whatever happens, and empty the list."""
        while reports:
            report = reports.pop(0)
            try:
                self._tell(report)
            except BaseException as error:  # Ctrl-C, perhaps while a sink was told
                for job in report.lot.jobs():
                    job.sink.abort(error)
                self.tell_all(reports)
                raise

    def tell_one(self, worker: Worker, lot: Lot, value: Any, head: bytes | None) -> None:
        """Tell of the result of a single call."""
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
            with self._crew.lock:
                self._crew.count(lot, 0, 1)

    def error(self, worker: Worker, envelope: Any) -> BaseException:
        """Return what *worker* raised."""
        return remote_errors.unpack(
            envelope, worker.name, self._serializer, exits=True, kind="worker"
        )

    def _tell(self, report: Report) -> None:
        worker, lot, first, entries, coded, errors, files = report
        try:
            if coded or errors:
                tell_each(
                    lot,
                    first,
                    entries,
                    errors,
                    files,
                    load=partial(self._loaded, worker),
                    error_of=partial(self.error, worker),
                )
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

    def _loaded(self, worker: Worker, head: bytes, files: Sequence[int]) -> Any:
        try:
            return self._serializer.loads(worker.parcels.unpack(head, files))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - hooks of its class
            refused = unread("a result", error)
            raise refused from refused.__cause__
