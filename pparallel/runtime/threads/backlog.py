"""The batches that wait for the workers of a pool, from its beginning to its end."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from pparallel.errors import ClosedError
from pparallel.interfaces.pool import PoolState
from pparallel.runtime.forks import Inherited
from pparallel.runtime.threads.job import SharedJob

if TYPE_CHECKING:
    from collections.abc import Callable

    from pparallel.interfaces.pool import Batch, Pool, Sink
    from pparallel.runtime.threads.slot import Slot

logger = logging.getLogger(__name__)

_ENDED = (PoolState.JOINED, PoolState.TERMINATED)


class Backlog:
    """What a pool whose workers are threads does of its own, apart from starting them.

    The pool passes :meth:`open`, :meth:`close`, :meth:`terminate` and what it is handed on, and
    has each of its threads call :meth:`serve`. Threads take tasks one by one from the oldest batch
    that has some left. Any thread may call any method.

    Attributes:
        state: where in its life the pool is.
    """

    def __init__(self, pool: Pool) -> None:
        self.state = PoolState.NEW
        self._pool = repr(pool)
        self._changed = threading.Condition()
        self._jobs: list[SharedJob] = []  # those that have not ended, the oldest first
        self._starting = threading.Lock()
        self._broken: BaseException | None = None

    def open(self) -> None:
        """Take batches from now on.

        Raises:
            ClosedError: it was opened before.
        """
        with self._changed:
            self.state = self.state.opened(self._pool)
        _backlogs.add(self)

    def put(self, batch: Batch, sink: Sink) -> None:
        """Have *batch* run: what ``Pool.carry`` promises.

        Raises:
            ClosedError: the pool does not take it.
        """
        with self._changed:
            self.state.check_taking(self._pool, continues=batch.continues)
            broken = self._broken
            if batch.items and broken is None:
                self._jobs.append(SharedJob(batch, sink))
                self._changed.notify_all()
        if batch.items and broken is not None:
            sink.abort(broken)

    def serve(self, slot: Slot, initialize: Callable[[], object]) -> None:
        """Run tasks for *slot* in the calling thread, until it is to end.

        Args:
            slot: the worker; its thread ends too when another has taken its place.
            initialize: called before the first task; once it has raised, all tasks fail with that.
        """
        self._initialize(initialize)
        while (job := self._next(slot)) is not None:
            with slot.busy:
                ended = job.work(slot) == "nothing"
            if ended:
                self._forget(job)
            del job  # nothing of a finished task is kept while there is no other

    def close(self) -> None:
        """Take only what continues earlier calls."""
        with self._changed:
            self.state = self.state.closed()

    def join(self, *, from_task: bool) -> None:
        """Wait until all batches have ended, and let the threads end.

        Args:
            from_task: a task of the pool asks, which would wait for itself.

        Raises:
            ValueError: the pool takes calls still.
            RuntimeError: a task asks.
        """
        with self._changed:
            self.state.check_joinable(self._pool, from_task=from_task)
            self._changed.wait_for(lambda: not self._jobs)
            if self.state is PoolState.CLOSED:
                self.state = PoolState.JOINED
            self._changed.notify_all()

    def terminate(self) -> None:
        """Fail what has not ended with ``ClosedError``, and let the threads end."""
        with self._changed:
            if self.state is not PoolState.INHERITED:
                self.state = PoolState.TERMINATED
        self._abort(ClosedError(self._pool, PoolState.TERMINATED.value))

    def leave_to_parent(self) -> None:
        """Forget the batches, in a child that this program has forked: it has no workers."""
        self.state = PoolState.INHERITED
        self._changed = threading.Condition()
        self._jobs = []

    def _next(self, slot: Slot) -> SharedJob | None:
        """Return the oldest job with tasks to start, ``None`` when the thread is to end."""
        with self._changed:
            while self.state not in _ENDED and not slot.leave():
                for job in self._jobs:
                    if not job.exhausted:
                        return job
                self._changed.wait()
        return None

    def _forget(self, job: SharedJob) -> None:
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)
                self._changed.notify_all()

    def _initialize(self, initialize: Callable[[], object]) -> None:
        with self._starting:
            if self._broken is not None:
                return
            try:
                initialize()
            except BaseException as error:
                logger.exception("The initializer of %s failed", self._pool)
                with self._changed:
                    self._broken = error
                self._abort(error)

    def _abort(self, error: BaseException) -> None:
        with self._changed:
            jobs, self._jobs = self._jobs, []
            self._changed.notify_all()
        for job in jobs:
            job.abort(error)


_backlogs = Inherited(Backlog.leave_to_parent, once=True)
