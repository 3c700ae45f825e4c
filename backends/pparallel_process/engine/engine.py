"""The engine of the process pools: its parts, put together, and the pool's calls.

There is one lock, for accounts only. Nothing is serialised or sent under it, and no sink is told
of results.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from time import monotonic

from pparallel.errors import ClosedError
from pparallel.interfaces.pool import Batch, PoolState, Sink
from pparallel.interfaces.pool.results import Publishing
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.forks import Inherited
from pparallel.runtime.pools import nesting
from pparallel.runtime.pools.board import Board
from pparallel.runtime.pools.functions import Functions
from pparallel.runtime.pools.values import unsent
from pparallel.runtime.shm import Arena
from pparallel.runtime.streams import Streams
from pparallel_process.accounts.crew import Crew
from pparallel_process.config import IsolatedPoolConfig
from pparallel_process.engine.express import Express
from pparallel_process.engine.leading import Leadership
from pparallel_process.engine.oversight import Oversight
from pparallel_process.engine.receiving import Receiver
from pparallel_process.staff.recruiter import Recruiter
from pparallel_process.staff.staffing import Staffing
from pparallel_process.telling import stacks
from pparallel_process.telling.insights import Insights
from pparallel_process.traffic.polling import Polling
from pparallel_process.traffic.sending import Sender

logger = logging.getLogger(__name__)

_FEW = 4  #: busy workers up to which each is asked; above, the system says who has something
_PUMP = 3e-4  #: seconds; a thread that only hands work over receives this often
_END = 5.0  #: seconds that an idle worker has to end by itself


class Engine:
    """Runs the batches of one pool.

    Args:
        config: the pool's.
        what: what errors call the pool.
        name: what the pool is called; its workers are named after it.
        serializer: what functions, items and results are turned into bytes with.
        streams: the pool's random streams.
        publishing: of the pool's results.
        dealt: tasks are dealt to the workers in turn, else each goes to one that is idle.
    """

    def __init__(
        self,
        config: IsolatedPoolConfig,
        what: str,
        name: str,
        serializer: Serializer,
        streams: Streams,
        publishing: Publishing,
        *,
        dealt: bool,
    ) -> None:
        self._config = config
        self._publishing = publishing
        self._what = what
        self._name = name
        self._serializer = serializer
        self._streams = streams
        self._state = PoolState.NEW
        self._crew = Crew(config, dealt=dealt)
        self._functions = Functions(serializer)
        self._leadership = Leadership(self, f"{name}-dispatcher")
        self._is_open = self._is_over = False
        self._pumped = 0.0

    def open(self) -> None:
        """Start the workers; does not wait for them."""
        nesting.check("opens a pool")
        with self._crew.lock:
            self._state = self._state.opened(self._what)
        with contextlib.ExitStack() as undo:
            self._arena = _arena(self._name)
            if self._arena is not None:
                undo.callback(self._arena.close)
            memory = Board.create(self._crew.size)
            undo.callback(os.close, memory)
            self._board = Board(memory)
            undo.callback(self._board.close)
            self._polling = Polling()
            undo.callback(self._polling.close)
            recruiter = Recruiter(
                self._config, self._name, self._serializer, self._streams, self._arena, memory
            )
            sender = self._sender = Sender(self._crew, self._serializer, self._functions.gone)
            staffing = self._staffing = Staffing(
                self._crew, recruiter, self._polling, self._board, self._arena, sender
            )
            undo.callback(staffing.close, 0.0)
            self._oversight = Oversight(self._crew, self._board, sender, staffing)
            self._receiver = Receiver(
                self._crew, sender, self._serializer, staffing, self._oversight.check_memory
            )
            self._express = Express(
                self._crew,
                self._serializer,
                self._functions,
                self._polling,
                sender,
                self._receiver,
                self._leadership,
            )
            staffing.start_all()
            self._release = undo.pop_all()
        self._is_open = True
        _engines.add(self)

    def close(self) -> None:
        """Take no more calls."""
        with self._crew.lock:
            self._state = self._state.closed()

    def join(self) -> None:
        """Wait until all tasks have ended, and release the workers."""
        self._state.check_joinable(self._what)
        while not self._may_end():
            self._sender.fill_all()
            self.attend(lambda: not self._crew.live, self._wait_until_quiet, None)
        with self._crew.lock:
            ends, self._is_open = self._is_open, False
        if ends:
            self._is_over = True
            with self._release:
                self._polling.nudge()
                self._leadership.stop()
                if self._state is not PoolState.TERMINATED:
                    self._staffing.close(_END)

    def terminate(self) -> None:
        """Fail what is not done, and end the workers."""
        with self._crew.lock:
            if self._state is not PoolState.INHERITED:
                self._state = PoolState.TERMINATED
            live = self._crew.abandon()
        if self._is_open:
            self._staffing.kill_all()
            self._is_over = True
            self._polling.nudge()
        error = ClosedError(self._what, PoolState.TERMINATED.value)
        for job in live:
            job.sink.abort(error)

    def carry(self, batch: Batch, sink: Sink) -> None:
        """See :meth:`pparallel.Pool.carry`."""
        if self._state is not PoolState.OPEN:
            self._state.check_taking(self._what, continues=batch.continues)
        if batch.awaited and batch.style == "call" and self._express.carry(batch, sink):
            return
        if not batch.items:
            self._functions.renew(batch.func)
            return
        try:
            function = self._functions.find(batch.func, continues=batch.continues)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - hooks of the user's objects
            sink.abort(unsent("the function", error))
            return
        with self._crew.lock:
            self._state.check_taking(self._what, continues=batch.continues)
            broken = self._staffing.broken
            if self._crew.express is not None:
                self._crew.express = None
                self._polling.nudge()  # whoever waits for the call alone is to lead for all
            if broken is None:
                self._crew.append(batch, sink, function)
        if broken is not None:
            sink.abort(broken)
            return
        self._sender.fill_all()
        self._attend_to(batch)

    def attend(
        self,
        ready: Callable[[], bool],
        wait: Callable[[float | None], object],
        timeout: float | None,
    ) -> None:
        """See :meth:`pparallel.Pool.attend`."""
        if self._state is PoolState.INHERITED:
            raise ClosedError(self._what, self._state.value)
        if timeout is None and self._crew.express is not None:
            self._express.attend(ready)
        if not ready():
            self._leadership.attend(ready, wait, timeout)

    def insights(self) -> Insights:
        """Return what the workers did."""
        return self._crew.ledger.report()

    def stacks(self) -> dict[str, str]:
        """Return what each worker is doing, as Python stacks."""
        with self._crew.lock:
            workers = list(self._crew.workers.values())
            files = [os.dup(each.dumps) for each in workers]  # a worker may be gone any moment
        try:
            return {
                each.name: stacks.dump(each.process, file)
                for each, file in zip(workers, files, strict=True)
            }
        finally:
            for file in files:
                os.close(file)

    def pids(self) -> list[int]:
        """Return the workers' process ids."""
        with self._crew.lock:
            return [each.process.pid for each in self._crew.workers.values()]

    def look(self) -> bool | None:
        """Take in what has arrived; return True if there was something, else None."""
        if self._is_over:
            return True
        self._pumped = monotonic()
        busy = self._crew.busy
        if len(busy) <= _FEW:
            return self._receiver.receive(busy) or None
        said, _ = self._polling.wait(0)
        return self._receiver.receive(said) or None

    def block(self, timeout: float | None) -> None:
        """Take in what arrives next, if it does within *timeout* seconds."""
        due = self._oversight.due()
        if due is not None:
            timeout = due if timeout is None else min(due, timeout)
        said, ended = self._polling.wait(timeout)
        if said:
            self._receiver.receive(said)
        for worker in ended:
            while self._receiver.receive((worker,)):
                pass
            self._staffing.ended(worker)
        if due is not None and not self._is_over:
            self._oversight.look()

    def needs_a_leader(self) -> bool:
        """Return whether something is to be waited for."""
        # A worker may have to say of tasks it need not run any more that it is free.
        return bool(self._crew.live or self._crew.busy) and not self._is_over

    def is_over(self) -> bool:
        """Return whether nothing will ever arrive."""
        return self._is_over

    def leave_to_parent(self) -> None:
        """Forget everything, in a child that this program has forked."""
        self._state = PoolState.INHERITED
        self._is_over = True
        self._leadership.reset()
        self._crew.reset()
        if self._is_open:
            self._is_open = False
            self._staffing.leave_to_parent()
            self._polling.leave_to_parent()

    def _attend_to(self, batch: Batch) -> None:
        """See to it that somebody receives what becomes of *batch*."""
        found: bool | None = False
        if not batch.awaited:
            self._leadership.see_to_it()
            now = monotonic()
            if now - self._pumped < _PUMP:
                return
            if self._publishing.listeners:  # what they call must not wait for this thread
                self._pumped = now
            else:
                found = self.look()
        # Whoever leads may wait for what this thread took in, and had nothing to look after so far.
        if self._leadership.is_taken and (found or self._oversight.stalls()):
            self._polling.nudge()

    def _may_end(self) -> bool:
        """Return whether no task is left; from then on none is taken."""
        crew = self._crew
        with crew.lock:
            closed = self._state is PoolState.CLOSED
            if closed and self._is_open and crew.live and not self._is_over:
                return False
            crew.is_over = True
            if closed:
                self._state = PoolState.JOINED
            return True

    def _wait_until_quiet(self, timeout: float | None) -> None:
        crew = self._crew
        with crew.quiet:
            crew.quiet.wait_for(lambda: not crew.live, timeout)


_engines = Inherited(Engine.leave_to_parent, once=True)


def _arena(name: str) -> Arena | None:
    try:
        return Arena.create(name)
    except OSError as error:
        logger.warning("there is no shared memory, and large data goes through files: %s", error)
        return None
