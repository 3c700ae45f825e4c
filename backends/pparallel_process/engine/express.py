"""The short way of a single call whose caller waits for it, while nothing else goes on.

``pool.apply(f, (1,))`` needs no queue, no lot cut to size and no thread but the caller's: its
latency is what two messages and two wake-ups cost. Whatever is not plain goes the usual way, and
so does everything that happens meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from pparallel.interfaces.pool import Batch, Sink
from pparallel_process.engine.crew import Crew
from pparallel_process.engine.functions import Functions
from pparallel_process.engine.jobs import Job
from pparallel_process.engine.leading import Leadership
from pparallel_process.engine.lots import CallLot
from pparallel_process.engine.polling import Polling
from pparallel_process.engine.receiving import Receiver
from pparallel_process.staff.worker import Worker
from pparallel_process.wire.channel import CALL, DONE, Received
from pparallel_process.wire.values import PLAIN
from pparallel_process.wire.waiting import Waiter


class Express:
    """Carries single calls to an idle worker, and waits for what becomes of them.

    Args:
        crew: the accounts.
        functions: those that the workers know.
        polling: where workers are waited for.
        receiver: takes in whatever else arrives.
        leadership: of the engine: who waits here leads.
    """

    def __init__(
        self,
        crew: Crew,
        functions: Functions,
        polling: Polling,
        receiver: Receiver,
        leadership: Leadership,
    ) -> None:
        self._crew = crew
        self._functions = functions
        self._polling = polling
        self._receiver = receiver
        self._leadership = leadership
        self._waiter = Waiter()
        self._timed = crew.config.task_timeout is not None

    def carry(self, batch: Batch, sink: Sink) -> bool:
        """Send the one call of *batch*, if it may go this way; return whether it did."""
        crew = self._crew
        function = self._functions.known(batch.func)
        args, kwargs = batch.items[0]
        if function is None or kwargs or crew.live or sink.observed:
            return False
        if not set(map(type, args)) <= PLAIN:
            return False
        with crew.lock:
            worker = crew.spare(function.number)
            if worker is None or crew.live:
                return False
            if not sink.begin():
                return True
            job = Job(batch, sink, function, range(1))
            job.take(1)
            lot = CallLot([job])
            crew.live.add(job)
            lot.number = crew.next_number()
            lot.sent = monotonic()
            crew.enter(worker, lot)
            crew.express = worker
        worker.channel.send_to_living((CALL, lot.number, function.number, args, self._timed))
        return True

    def attend(self, ready: Callable[[], bool]) -> None:
        """Wait for the call that went this way, as long as nothing else happens."""
        worker = self._crew.express
        if worker is None or self._timed or not self._leadership.take():
            return
        try:
            while self._crew.express is worker and not ready():
                received = self._waiter.wait(worker.channel.poll, self._block)
                if received is None or not self._finish(worker, received):
                    break
        finally:
            self._crew.express = None
            self._leadership.give_up()

    def _block(self) -> Received | None:
        worker = self._crew.express
        if worker is not None and self._polling.wait_for(worker):
            return worker.channel.poll()
        return None

    def _finish(self, worker: Worker, received: Received) -> bool:
        """Take in what *worker* said; return whether it was the result of a call."""
        message, files = received
        if message[0] != DONE:
            self._receiver.take_in(worker, message, files)
            return False
        self._receiver.finish(worker, message)
        return True
