"""The short way of a single call whose caller waits for it, while nothing else goes on.

``pool.apply(f, (1,))`` needs no queue, no lot cut to size and no thread but the caller's: its
latency is what two messages and two wake-ups cost. A call with keyword arguments, one that fails
and one that finds no room go the usual way, and so does everything that happens meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from pparallel.interfaces.pool import Batch, Sink
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.plain import PLAIN
from pparallel.runtime.pools.functions import Functions
from pparallel.runtime.pools.jobs import Job
from pparallel.runtime.pools.lots import CallLot, Lot
from pparallel.runtime.pools.messages import CALL
from pparallel.runtime.pools.waiting import Waiter
from pparallel_process.accounts.crew import Crew
from pparallel_process.accounts.worker import Worker
from pparallel_process.engine.leading import Leadership
from pparallel_process.engine.receiving import Receiver
from pparallel_process.traffic.polling import Polling
from pparallel_process.traffic.sending import UNSENT, Sender


class Express:
    """Carries single calls to an idle worker, and waits for what becomes of them.

    Args:
        crew: the accounts.
        serializer: what arguments are turned into bytes with.
        functions: those that the workers know.
        polling: where workers are waited for.
        sender: told of what could not be sent.
        receiver: takes in whatever else arrives.
        leadership: of the engine: who waits here leads.
    """

    def __init__(
        self,
        crew: Crew,
        serializer: Serializer,
        functions: Functions,
        polling: Polling,
        sender: Sender,
        receiver: Receiver,
        leadership: Leadership,
    ) -> None:
        self._crew = crew
        self._serializer = serializer
        self._functions = functions
        self._polling = polling
        self._sender = sender
        self._receiver = receiver
        self._leadership = leadership
        self._waiter = Waiter()
        self._timed = crew.config.task_timeout is not None

    def carry(self, batch: Batch, sink: Sink) -> bool:
        """Send the one call of *batch*, if it may go this way; return whether it did."""
        function = self._functions.known(batch.func)
        args, kwargs = batch.items[0]
        if function is None or kwargs or self._crew.live or sink.observed:
            return False
        worker = self._reserved(function.number)
        if worker is None:
            return False
        try:
            head = None
            if not set(map(type, args)) <= PLAIN:
                head, args = self._packed(worker, args), None
                if head is None:
                    return False
            lot = self._entered(worker, Job(batch, sink, function, range(1)), head)
            if lot is None:
                if head is not None:
                    worker.parcels.drop(head)
                return sink.cancelled
            self._send(worker, lot, (CALL, lot.number, function.number, args, head, self._timed))
        finally:
            worker.is_being_filled = False
        return True

    def attend(self, ready: Callable[[], bool]) -> None:
        """Wait for the call that went this way, as long as nothing else happens."""
        worker = self._crew.express
        if worker is None or self._timed or not self._leadership.take():
            return
        try:
            while self._crew.express is worker and not ready():
                follow_up = self._waiter.wait(self._poll, self._block)
                if follow_up is None or not follow_up():
                    break
        finally:
            self._crew.express = None
            self._leadership.step_down()

    def _reserved(self, function: int) -> Worker | None:
        crew = self._crew
        with crew.lock:
            worker = None if crew.live else crew.spare(function)
            if worker is not None:
                worker.is_being_filled = True
            return worker

    def _packed(self, worker: Worker, args: Any) -> bytes | None:
        try:
            parcel = worker.parcels.pack(self._serializer.dumps(args))
        except (Exception, SystemExit):  # noqa: BLE001 - raised again on the usual way, and told
            return None
        if not parcel.fds:
            return parcel.head()
        worker.parcels.drop(parcel.head(), parcel.fds)
        return None

    def _entered(self, worker: Worker, job: Job, head: bytes | None) -> Lot | None:
        """Return the lot with which *worker* is the one that has something to do."""
        crew = self._crew
        with crew.lock:
            if crew.live or crew.is_over or not crew.serves(worker) or not job.sink.begin():
                return None
            job.take(1)
            lot = CallLot([job])
            crew.live.add(job)
            lot.number = crew.next_number()
            lot.sent = monotonic()
            crew.enter(worker, lot)
            worker.heads[lot.number] = [] if head is None else [head]
            crew.express = worker
            return lot

    def _send(self, worker: Worker, lot: Lot, message: tuple[Any, ...]) -> None:
        try:
            worker.channel.send(message)
        except UNSENT as error:
            heads = worker.heads.get(lot.number, [])
            if self._sender.not_sent(worker, lot, error):
                for each in heads:
                    worker.parcels.drop(each)

    def _poll(self) -> Callable[[], bool] | None:
        worker = self._crew.express
        return None if worker is None else self._receiver.take_next(worker)

    def _block(self) -> Callable[[], bool] | None:
        worker = self._crew.express
        if worker is not None and self._polling.wait_for(worker):
            return self._poll()
        return None
