"""The joblib backend: batches of calls become tasks of a pool."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from joblib.parallel import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
    ThreadingBackend,
)
from typing_extensions import override

from pparallel.interfaces.pool import Pool, PoolConfig
from pparallel.joblib.workers import BuiltWorkers, GivenWorkers, Workers

Done = Callable[[Future[Any]], object]


class PoolBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc] # joblib is untyped
    """Runs what ``joblib.Parallel`` is given on a pool.

    The pool of a config is built when it is first needed, is used again by every call inside the
    same ``parallel_config`` and ends with it. A pool that was given is its owner's to close.

    Args:
        pool: a pool, a pool's config, the mapping of one, or a backend's name.
        nesting_level: how many calls of ``Parallel`` this is inside of.
        inner_max_num_threads: threads that BLAS and the like may use in each worker.
    """

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1

    # How long a batch should take: tasks reach our workers sooner than joblib's own
    MIN_IDEAL_BATCH_DURATION = 0.05
    MAX_IDEAL_BATCH_DURATION = 0.5

    def __init__(
        self,
        pool: Pool | PoolConfig | Mapping[str, Any] | str = "process",
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
    ) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self._workers: Workers
        self._workers = GivenWorkers(pool) if isinstance(pool, Pool) else BuiltWorkers(pool)
        self.uses_threads = self.supports_sharedmem = self._workers.share_memory
        self._queue: _Queue | None = None
        self.parallel: Any = None
        weakref.finalize(self, self._workers.end)

    @override
    def effective_n_jobs(self, n_jobs: int | None) -> int:
        if n_jobs == 0:
            message = "n_jobs == 0 in Parallel has no meaning"
            raise ValueError(message)
        if n_jobs is None:
            return 1
        if n_jobs < 0:
            return max(self._workers.size() + 1 + n_jobs, 1)
        return self._workers.at_most(n_jobs)

    @override
    def configure(self, n_jobs: int = 1, parallel: Any = None, **_options: object) -> int:
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        pool = self._workers.ready(n_jobs, self.inner_max_num_threads)
        self._queue = _Queue(pool, n_jobs)
        return n_jobs

    @override
    def submit(self, func: Callable[[], Any], callback: Done | None = None) -> None:
        assert self._queue is not None, "joblib configures its backends first"
        self._queue.append(_Batch(func, callback))

    apply_async = submit  # its name before joblib 1.5

    @override
    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        return out.result()

    @override
    def abort_everything(self, ensure_ready: bool = True) -> None:
        if self._queue is not None and self._queue.drop():
            self._workers.abort()
        if ensure_ready:
            self.configure(self.parallel.n_jobs, self.parallel)

    @override
    def terminate(self) -> None:
        self.parallel = None  # it holds this backend
        self._queue = None
        self.reset_batch_stats()

    @override
    def get_nested_backend(self) -> tuple[ParallelBackendBase, None]:
        level = (self.nesting_level or 0) + 1
        nested = NestedBackend if level == 1 else SequentialBackend
        return nested(nesting_level=level), None


class NestedBackend(ThreadingBackend):  # type: ignore[misc] # joblib is untyped
    """What joblib uses inside a task by default; a worker that gets one knows ``pparallel`` too."""


class _Batch(NamedTuple):
    call: Callable[[], Any]
    done: Done | None


class _Queue:
    """Hands batches to a pool, so many at a time as there are to be jobs.

    joblib hands over the next batch from the callback of an earlier one. In a pool that runs a
    task at once that would be inside the former's call, and so on: the next waits for its end.
    """

    def __init__(self, pool: Pool, limit: int) -> None:
        self._pool = pool
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: deque[_Batch] = deque()
        self._running: set[Future[Any]] = set()
        self._underway = 0
        self._handing_over = threading.local()

    def append(self, batch: _Batch) -> None:
        self._waiting.append(batch)
        self._hand_over()

    def drop(self) -> bool:
        """Drop what has not started; return whether something runs still."""
        self._waiting.clear()
        with self._lock:
            running = list(self._running)
        for each in running:
            each.cancel()
        return not all(each.done() for each in running)

    def _hand_over(self) -> None:
        if getattr(self._handing_over, "now", False):
            return
        self._handing_over.now = True
        try:
            while (batch := self._next()) is not None:
                future = self._submitted(batch.call)
                with self._lock:
                    self._running.add(future)
                future.add_done_callback(partial(self._ended, batch.done))
        finally:
            self._handing_over.now = False

    def _next(self) -> _Batch | None:
        with self._lock:
            if not self._waiting or self._underway >= self._limit:
                return None
            self._underway += 1
            return self._waiting.popleft()

    def _submitted(self, call: Callable[[], Any]) -> Future[Any]:
        try:
            return self._pool.submit(run, call)
        except Exception as error:  # noqa: BLE001 - joblib waits for the callback
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    def _ended(self, done: Done | None, future: Future[Any]) -> None:
        with self._lock:
            self._running.discard(future)
            self._underway -= 1
        if done is not None:
            done(future)
        self._hand_over()


def run(*given: Any) -> Any:
    """Run a batch in a worker, which may pass its context first."""
    return given[-1]()
