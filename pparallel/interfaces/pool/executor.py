"""A pool seen as an executor of :mod:`concurrent.futures`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from typing_extensions import override

from pparallel.errors import ClosedError

if TYPE_CHECKING:
    from pparallel.interfaces.pool import Pool
    from pparallel.interfaces.pool.results import PoolResult

P = ParamSpec("P")
R = TypeVar("R")


class PoolExecutor(Executor):
    """Runs what it is given on a pool that somebody else closes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._futures: set[PoolResult[Any]] = set()
        self._shut = False

    @override
    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        if self._shut:
            raise ClosedError(f"the executor of {self._pool!r}")
        future = self._pool.submit(fn, *args, **kwargs)
        with self._lock:
            self._futures.add(future)
        future.when_done(self._forget)
        return future

    @override
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls and, unless told not to, wait for those taken; the pool stays open."""
        with self._lock:
            self._shut = True
            futures = list(self._futures)
        if cancel_futures:
            for future in futures:
                future.cancel()
        if wait:
            for each in futures:
                each.wait()  # in a task the pool has another worker meanwhile

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._futures.discard(cast("PoolResult[Any]", future))
