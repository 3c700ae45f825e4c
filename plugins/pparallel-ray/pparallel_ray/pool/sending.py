"""Send lots to the workers."""

from __future__ import annotations

from collections import deque
from time import monotonic

from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.pools.lots import Lot
from pparallel.runtime.pools.shipping import forget, fresh_functions, lot_message
from pparallel.runtime.pools.values import unsent
from pparallel.runtime.pools.writing import Writer
from pparallel_ray.pool.accounts.crew import Crew
from pparallel_ray.pool.accounts.worker import Worker
from pparallel_ray.pool.wire.parcels import Parcels


class Sender:
    """Cuts lots from what waits and sends them; called by the dispatcher.

    Args:
        crew: the accounts.
        serializer: what items are turned into bytes with.
        gone: the numbers of functions that nobody needs any longer.
    """

    def __init__(self, crew: Crew, serializer: Serializer, gone: deque[int]) -> None:
        self._crew = crew
        self._gone = gone
        self._writer = Writer(serializer)
        self._parcels = Parcels()
        self._timed = crew.config.task_timeout is not None

    def fill_all(self) -> None:
        """Send what waits to all who may have some, the idle ones first."""
        if self._crew.welcome():
            for worker in self._crew.takers():
                self.fill(worker)

    def fill(self, worker: Worker) -> None:
        """Send lots to *worker* as long as it may have more."""
        while (lot := self._crew.take(worker)) is not None:
            self._send(worker, lot)

    def _send(self, worker: Worker, lot: Lot) -> None:
        crew = self._crew
        written = self._writer.write(lot, self._parcels)
        if written.size < lot.size:
            crew.cut(lot, max(written.size, 1))
        if not written.size:
            assert written.failure is not None
            self._fail(lot, unsent("an argument", written.failure))
            return
        fresh = fresh_functions(lot, worker.known)
        worker.known.update(fresh)
        forget(self._gone, crew.workers.values())
        forgotten, worker.forgotten = worker.forgotten, []
        message = lot_message(lot, written, fresh, forgotten, is_timed=self._timed)
        job, index = lot.task(0)
        if job.sink.observed:
            job.sink.started(index, worker.name)
        with crew.lock:
            if crew.is_over:
                return
            lot.sent = monotonic()
            crew.enter(worker, lot)
            try:
                worker.channel.send(message, written.files)
            except OSError:  # it has died, and is buried when its supervisor says how
                worker.is_silent = True

    def _fail(self, lot: Lot, error: BaseException) -> None:
        lot.failed(error)
        self._crew.count(lot, 0, lot.size)
