"""Send lots to the workers."""

from __future__ import annotations

import errno
import os
from collections import deque
from signal import SIGKILL
from time import monotonic

from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.pools.lots import Lot
from pparallel.runtime.pools.shipping import forget, fresh_functions, lot_message
from pparallel.runtime.pools.values import PARCELS, unsent
from pparallel.runtime.pools.writing import Writer, Written
from pparallel_process.accounts.crew import Crew
from pparallel_process.accounts.worker import Worker

UNSENT = (OSError, MemoryError, ValueError)  #: what sending raises; ValueError: over 2 GiB
_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF})


class Sender:
    """Cuts lots from what waits and sends them."""

    def __init__(self, crew: Crew, serializer: Serializer, gone: deque[int]) -> None:
        """Know whom to send to.

        Args:
            crew: the accounts.
            serializer: what items are turned into bytes with.
            gone: the numbers of functions that nobody needs any longer.
        """
        self._crew = crew
        self._gone = gone
        self._writer = Writer(serializer)
        self._timed = crew.config.task_timeout is not None

    def fill_all(self) -> None:
        """Send what waits to all who may have some, the idle ones first."""
        with self._crew.lock:
            takers = self._crew.takers()
        for worker in takers:
            if worker.queue:
                self.fill(worker)

    def fill(self, worker: Worker) -> None:
        """Send lots to *worker* as long as it may have more."""
        crew = self._crew
        while True:
            with crew.lock:
                lot = crew.take(worker)
            if lot is None:
                return
            try:
                self._send(worker, lot)
            except BaseException:  # Ctrl-C
                with crew.lock:
                    if lot.number in worker.lots:  # nobody knows whether it was sent
                        worker.process.signal(SIGKILL)
                    else:
                        crew.give_back(worker, lot, 0, lot.size)
                raise
            finally:
                worker.is_being_filled = False
            if not worker.queue:
                return

    def _send(self, worker: Worker, lot: Lot) -> None:
        crew = self._crew
        written = self._writer.write(lot, worker.parcels)
        with crew.lock:
            serves = crew.serves(worker)
            if not serves:
                crew.give_back(worker, lot, 0, lot.size)
                size = 0
            else:
                size = written.size
                if size < lot.size:
                    crew.cut(worker, lot, max(size, 1))
                if size:
                    lot.sent = monotonic()
                    crew.enter(worker, lot)
                    worker.heads[lot.number] = written.content if written.kind == PARCELS else []
        if size:
            self._ship(worker, lot, written)
        elif written.size:
            written.drop(worker.parcels)
        elif written.failure is not None and serves:
            self._fail(lot, unsent("an argument", written.failure))
        if not serves:
            self.fill_all()  # others may have it

    def _ship(self, worker: Worker, lot: Lot, written: Written) -> None:
        fresh = fresh_functions(lot, worker.known)
        with self._crew.lock:
            forget(self._gone, self._crew.workers.values())
            forgotten, worker.forgotten = worker.forgotten, []
        message = lot_message(lot, written, fresh, forgotten, is_timed=self._timed)
        job, index = lot.task(0)
        if job.sink.observed:
            job.sink.started(index, worker.name)
        try:
            worker.channel.send(message, written.files)
        except UNSENT as error:
            if self.not_sent(worker, lot, error):
                written.drop(worker.parcels)
        else:
            worker.known.update(fresh)
        finally:
            for each in written.files:
                os.close(each)

    def not_sent(self, worker: Worker, lot: Lot, error: Exception) -> bool:
        """Fail *lot*, which could not be sent; return False where that is due to a death.

        Then it is looked after when the worker is buried.
        """
        if isinstance(error, OSError) and error.errno in _GONE:
            return False
        with self._crew.lock:
            self._crew.leave(worker, lot)
        self._fail(lot, error)
        return True

    def _fail(self, lot: Lot, error: BaseException) -> None:
        lot.failed(error)
        with self._crew.lock:
            self._crew.count(lot, 0, lot.size)
