"""The engine of :class:`BasePool`: it hands tasks to workers, and sees to the workers.

What a subclass may override is called by two threads of the engine's, so that a call returns at
once. One puts tasks into the queue. The other takes answers out of it and, ten times a second, has
the pool maintained; a task whose worker died is failed once that queue was found empty since, so
that what was answered stays. Neither keeps the pool alive while there is nothing to do.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import queue
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from pparallel.compat.machin.pool import notes
from pparallel.compat.machin.pool.census import Census
from pparallel.compat.machin.pool.ledger import Key, Ledger
from pparallel.compat.machin.pool.messages import opened
from pparallel.compat.machin.pool.results import AsyncResult, Callback, IMapIterator, MapResult
from pparallel.compat.machin.pool.road import Func, Road, Style
from pparallel.compat.machin.pool.states import PoolStates
from pparallel.compat.machin.pool.workers import close_all, join_all, terminate_all
from pparallel.errors import ClosedError, SerializationError
from pparallel.interfaces.pool import PoolState
from pparallel.runtime.collected import when_collected
from pparallel.runtime.pools import nesting

if TYPE_CHECKING:
    from pparallel.compat.machin.pool.base import BasePool

logger = logging.getLogger(__name__)

_PAUSE = 0.1  #: seconds between two looks at the workers
_LATE = 0.5  #: seconds after which a death is dealt with though there always is an answer
_PATIENCE = 1.0  #: seconds that a thread of the engine has to end


class Engine(Road):
    """Runs the calls of one pool on workers of its own.

    Args:
        pool: the pool, which is not kept alive.
    """

    def __init__(self, pool: BasePool) -> None:
        self._pool = weakref.ref(pool)
        self._owner = os.getpid()
        self._size = pool._processes
        self._ledger = Ledger()
        self._feed: queue.SimpleQueue[Any] = queue.SimpleQueue()  # None: there will be no more
        self._jobs = itertools.count()
        self._census = Census(self._ledger, self._fail)
        self._broken: BaseException | None = None  # why no task can be run any more
        self._due = 0.0
        self._lock = threading.Lock()
        self._is_over = False
        self._workers: list[Any] = []
        self._queues: tuple[Any, Any] = (None, None)
        self._departed: Callable[[], object] | None = None
        self._feeder = threading.Thread(target=self._feed_tasks, name="pool-feeder", daemon=True)
        self._attendant = threading.Thread(target=self._attend, name="pool-attendant", daemon=True)

    @property
    def handle(self) -> notes.Handle:
        """Where workers note what they take."""
        return self._ledger.handle

    def open(self, pool: BasePool) -> None:
        """Start workers and threads."""
        nesting.check("opens a pool")
        # First: a thread that finds the pool broken ends it, and then nothing is watched any more.
        self._departed = when_collected(pool, self._end_by_force)
        try:
            self._queues = pool._inqueue, pool._outqueue = pool.setup_queues()
            self._workers = pool._pool
            pool.repopulate_pool()
            self._feeder.start()
            self._attendant.start()
        except BaseException:
            self._end_by_force()
            raise

    # -- calls --------------------------------------------------------------------------------

    @override
    def call(
        self,
        func: Func,
        args: Sequence[Any],
        kwds: Mapping[str, Any],
        callback: Callback,
        error_callback: Callback,
    ) -> AsyncResult:
        pool, job = self._checked(), next(self._jobs)
        result = AsyncResult(job, pool._cache, callback, error_callback)
        self._submit(pool, job, [(func, tuple(args), dict(kwds))])
        return result

    @override
    def map(
        self,
        func: Func,
        items: Sequence[Any],
        style: Style,
        chunksize: int | None,
        callback: Callback,
        error_callback: Callback,
    ) -> MapResult:
        pool, job = self._checked(), next(self._jobs)
        chunksize = chunksize or -(-len(items) // (4 * self._size))
        result = MapResult(job, pool._cache, chunksize, len(items), callback, error_callback)
        starts = range(0, len(items), chunksize or 1)
        chunks = [(func, style, items[each : each + chunksize]) for each in starts]
        self._submit(pool, job, [(_run_chunk, each, {}) for each in chunks])
        return result

    @override
    def imap(self, func: Func, items: Sequence[Any], kind: type[IMapIterator]) -> IMapIterator:
        pool, job = self._checked(), next(self._jobs)
        result = kind(job, pool._cache, len(items))
        self._submit(pool, job, [(func, (each,), {}) for each in items])
        return result

    @override
    def size(self) -> int:
        return self._size

    def _checked(self) -> BasePool:
        pool = self._pool()
        assert pool is not None  # it is what calls
        if os.getpid() != self._owner:
            raise ClosedError(repr(pool), PoolState.INHERITED.value)
        if pool._state is not PoolStates.RUN:
            is_closed = pool._state is PoolStates.CLOSE
            why = PoolState.CLOSED if is_closed else PoolState.TERMINATED
            raise ClosedError(repr(pool), why.value)
        return pool

    def _submit(
        self,
        pool: BasePool,
        job: int,
        calls: Sequence[tuple[Func, tuple[Any, ...], dict[str, Any]]],
    ) -> None:
        tasks = [(job, chunk, *call) for chunk, call in enumerate(calls)]
        for each in tasks:
            self._ledger.enter(each)
        for each in tasks:
            self._feed.put(each)
        # After they were entered: whoever ends the pool, or finds it broken, fails what is entered.
        if self._broken is not None:
            self._fail_all(pool, self._broken)
        elif pool._state is PoolStates.TERMINATE:
            self._fail_all(pool, ClosedError(repr(pool), PoolState.TERMINATED.value))

    # -- the end ------------------------------------------------------------------------------

    @override
    def close(self) -> None:
        """The attendant sees that the pool is closed, and ends it once all is answered."""

    @override
    def join(self) -> None:
        self._await_threads(None)

    @override
    def terminate(self) -> None:
        pool = self._pool()
        assert pool is not None
        if os.getpid() != self._owner:
            return
        self._fail_all(pool, ClosedError(repr(pool), PoolState.TERMINATED.value))
        self._wake_up()
        self._await_threads(_PATIENCE)  # so that no worker is replaced behind our back
        if not self._is_over:
            pool.terminate_workers()
            pool.join_workers()
            self._release()

    def _await_threads(self, timeout: float | None) -> None:
        for each in (self._attendant, self._feeder):
            if each is not threading.current_thread() and each.is_alive():
                each.join(timeout)

    def _wake_up(self) -> None:
        """Have the feeder end, and whatever waits for a queue."""
        self._feed.put(None)
        for each in self._queues:
            shut_down: Callable[[], object] | None = getattr(each, "shutdown", None)
            if shut_down is not None:
                with suppress(ClosedError):
                    shut_down()

    def _end_by_force(self) -> None:
        """End what is left of a pool: it is done, or was collected, or could not be opened."""
        if os.getpid() != self._owner or self._is_over:
            return
        self._wake_up()
        terminate_all(self._workers)
        for each in self._workers:
            if isinstance(each, threading.Thread):
                self._queues[0].put(None)
        join_all(self._workers, _PATIENCE)
        self._release()

    def _release(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        self._feed.put(None)
        close_all(self._workers)
        for each in self._queues:
            close = getattr(each, "close", None)
            if close is not None:
                close()
        self._ledger.close()
        if self._departed is not None:
            self._departed()

    # -- the threads --------------------------------------------------------------------------

    def _feed_tasks(self) -> None:
        while (task := self._feed.get()) is not None and self._put(task):
            del task

    def _put(self, task: Any) -> bool:
        pool, key = self._pool(), (task[0], task[1])
        if pool is None:
            return False
        if self._ledger.begin_to_put(key):
            try:
                pool.pool_inqueue_put(task)
            except BaseException as error:  # noqa: BLE001 - what cannot be put fails
                self._answer(pool, key, (False, error))
            else:
                self._ledger.was_put(key)
        return True

    def _attend(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Take in one answer, and look after the workers if it is time; return whether to go on."""
        pool = self._pool()
        if pool is None or pool._state is PoolStates.TERMINATE:
            return False
        try:
            self._receive(pool)
            if self._is_over:  # a callback has terminated it
                return False
            if monotonic() >= self._due:
                self._due = monotonic() + _PAUSE
                self._maintain(pool)
        except Exception as error:  # noqa: BLE001 - nobody else could tell those who wait
            self._break(pool, error)
            return False
        if pool._state is PoolStates.CLOSE and not self._ledger.unanswered():
            self._finish(pool)
            return False
        return True

    def _receive(self, pool: BasePool) -> None:
        self._workers = pool._pool
        self._census.look(pool._pool)
        known = monotonic()
        try:
            message = pool.pool_outqueue_get(_PAUSE)
        except (TimeoutError, multiprocessing.TimeoutError):
            self._see_to_the_dead(pool, known)
        except SerializationError as error:  # whose answer this was is not known
            self._fail_all(pool, error)
        else:
            self._take(pool, message)
            if not self._is_over:
                self._see_to_the_dead(pool, known - _LATE)

    def _take(self, pool: BasePool, message: Any) -> None:
        job, chunk, outcome = opened(message)
        if job is None:  # a worker could not start; instead of the chunk there is its pid
            self._census.explained(chunk, outcome[1])
        else:
            self._census.answered()
            self._answer(pool, (job, chunk), outcome)

    def _see_to_the_dead(self, pool: BasePool, known: float) -> None:
        self._census.bury(known, self._queues[0])
        if self._broken is None and self._census.broken is not None:
            self._broken = self._census.broken
            self._fail_all(pool, self._broken)

    def _fail(self, key: Key, error: BaseException) -> None:
        pool = self._pool()
        if pool is not None:
            self._answer(pool, key, (False, error))

    def _answer(self, pool: BasePool, key: Key, outcome: tuple[bool, Any]) -> None:
        if self._ledger.answer(key):
            result = pool._cache.get(key[0])
            if result is not None:  # else it has failed already
                result.set(key[1], outcome)

    def _fail_all(self, pool: BasePool, error: BaseException) -> None:
        for each in self._ledger.unanswered():
            self._answer(pool, each, (False, error))

    def _maintain(self, pool: BasePool) -> None:
        if self._broken is None:
            try:
                pool.maintain_pool()
            except Exception as error:
                logger.exception("The workers of %r could not be looked after", pool)
                self._census.failed_to_start(error)

    def _finish(self, pool: BasePool) -> None:
        if self._broken is None:
            try:
                for _ in list(pool._pool):
                    pool.pool_inqueue_put(None)
                pool.join_workers()
            except Exception:
                if pool._state is not PoolStates.TERMINATE:  # else it is no wonder
                    logger.exception("The workers of %r could not be told to end", pool)
        if pool._state is not PoolStates.TERMINATE:
            self._end_by_force()

    def _break(self, pool: BasePool, error: Exception) -> None:
        if pool._state is not PoolStates.TERMINATE:
            logger.error("%r cannot go on: %s", pool, error)
            pool._state = PoolStates.TERMINATE
            self._broken = error
            self._fail_all(pool, error)
            self._end_by_force()


def _run_chunk(func: Func, style: Style, items: Sequence[Any]) -> list[Any]:
    return list(map(func, items)) if style == "one" else list(itertools.starmap(func, items))
