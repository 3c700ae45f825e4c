"""Work handed to a pool input by input, and collected as it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from types import TracebackType
from typing import Any, Self

from pparallel.builder import build, load
from pparallel.errors import ClosedError, TaskTimeoutError
from pparallel.interfaces.pool import Pool, PoolConfig
from pparallel.runtime import stopping
from pparallel.runtime.collected import when_collected
from pparallel.runtime.future import LeanFuture
from pparallel.runtime.program_end import end_with_program


class Parallelizable:
    """Base of a unit of work that :class:`Parallel` runs for many inputs at once."""

    def forward_backward(self, x: Any) -> Any:
        """Return the result for the input *x*; called by several workers at once."""
        raise NotImplementedError


class Parallel:
    """Runs a :class:`Parallelizable` for each input that is put, and gives the results back.

    Results come in the order in which they are ready. Each :meth:`get` answers one :meth:`put`:
    it returns a result, or raises what ``forward_backward`` raised.

    Workers end when this is closed, left or collected, once all that was put has run, and with the
    program at the latest. A pool that was given ready stays open. In a pool with ``isolated``
    workers the object travels to the worker with each input: what a worker changes in its copy,
    gradients included, stays there, so return what you need.

    Args:
        num_workers: how many inputs are worked on at once; 0: each is run in the caller, by
            :meth:`put`.
        parallizable: the object whose ``forward_backward`` is called.
        serial_init: run the first *num_workers* inputs in the caller, so that what is made on first
            use is not made by several workers at once.
        pool: a pool that is open, the config of one (or a mapping) to be opened here, by default
            with *num_workers* workers, or ``None`` for threads.

    Source: gluonnlp.utils.parallel.
    """

    def __init__(
        self,
        num_workers: int,
        parallizable: Any,
        serial_init: bool = True,
        *,
        pool: Pool | PoolConfig | Mapping[str, Any] | None = None,
    ) -> None:
        if num_workers < 0:
            raise ValueError(f"num_workers must be 0 or more, not {num_workers}")
        self._work = _forward_backward(parallizable)
        self._serial = num_workers if serial_init else 0
        self._lock = threading.Condition()
        self._outstanding = 0
        self._outcomes: SimpleQueue[Future[Any]] = SimpleQueue()
        self._closed = False
        self._own: list[Pool] = []  # the pool that was made here, until it is ended
        if isinstance(pool, Pool):
            self._pool = pool if num_workers else None
            return
        config = _config(pool, num_workers)
        self._pool = build(config).__enter__() if num_workers else None
        if self._pool is not None:
            self._own.append(self._pool)
            end_with_program(self._pool)
            self._collected = when_collected(self, partial(_end_aside, self._own))

    def put(self, x: Any) -> None:
        """Have ``forward_backward(x)`` run by a worker, or in the caller where that was asked for.

        Raises:
            ClosedError: this, or the pool, is closed.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the Parallel")
            self._outstanding += 1
            self._lock.notify()
            here = self._pool is None or self._serial > 0
            self._serial -= here
        try:
            if self._pool is None or here:
                self._outcomes.put(_called(self._work, x))
            else:  # nothing here holds self: a task must not keep it from being collected
                self._pool.submit(self._work, x).when_done(self._outcomes.put)
        except BaseException:
            with self._lock:
                self._outstanding -= 1
            raise

    def get(self, timeout: float | None = None) -> Any:
        """Return the next result that is ready, waiting for it if need be.

        Args:
            timeout: seconds; ``None`` for no limit.

        Raises:
            Exception: what ``forward_backward`` raised, or the pool for it.
            RuntimeError: every result was got already: nothing is left to wait for.
            TaskTimeoutError: none was ready in time.
        """
        with self._lock:
            self._check_put()
            self._outstanding -= 1
        try:
            with stopping.waking(lambda why: self._outcomes.put(_failed(why))):
                outcome = self._next(timeout)
        except BaseException:
            with self._lock:
                self._outstanding += 1
            raise
        try:
            return outcome.result()
        finally:
            del outcome  # no cycle of exception, traceback and this frame

    def close(self) -> None:
        """Take no more, and end the pool if it was made here; safe to call again.

        What was put is run first, and its results can be got still.
        """
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            ending, self._own[:] = self._own[:], []
        for pool in ending:
            pool.__exit__(exc_type, exc, tb)
            self._collected()

    # -- inside -------------------------------------------------------------------------------

    def _check_put(self) -> None:
        """Check that a result is to come, or is there; called under the lock."""
        if self._outstanding == 0:
            message = "there is nothing to get: each result of what was put was got already"
            raise RuntimeError(message)

    def _next(self, timeout: float | None) -> Future[Any]:
        found: list[Future[Any]] = []

        def wait(limit: float | None) -> None:
            with suppress(Empty):
                found.append(self._outcomes.get(timeout=limit))

        deadline = None if timeout is None else monotonic() + timeout
        wait(0)
        while not found:
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                raise TaskTimeoutError("the next result", timeout or 0.0)
            if self._pool is None:
                wait(left)
            else:  # it may use the calling thread meanwhile, or lend its place to another
                self._pool.attend(lambda: bool(found), wait, left)
        return found[0]


def _end_aside(own: list[Pool]) -> None:
    """Have the pool finish what it has, and end, in a thread that nothing waits for."""
    for pool in own:
        end = partial(pool.__exit__, None, None, None)
        threading.Thread(target=end, name="pparallel-end", daemon=True).start()


def _called(work: Callable[[Any], Any], x: Any) -> Future[Any]:
    outcome = LeanFuture[Any]()
    try:
        outcome.set_result(work(x))
    except Exception as error:  # noqa: BLE001 - raised by get
        outcome.set_exception(error)
    return outcome


def _failed(error: BaseException) -> Future[Any]:
    outcome = LeanFuture[Any]()
    outcome.set_exception(error)
    return outcome


def _forward_backward(parallizable: Any) -> Callable[[Any], Any]:
    work = getattr(parallizable, "forward_backward", None)
    if not callable(work):
        message = f"{parallizable!r} has no method forward_backward(x): derive from Parallelizable"
        raise TypeError(message)
    found: Callable[[Any], Any] = work
    return found


def _config(pool: PoolConfig | Mapping[str, Any] | None, workers: int) -> PoolConfig:
    if not isinstance(pool, PoolConfig):
        pool = load(PoolConfig, {"backend": "thread"} if pool is None else pool)
    if not workers or pool.size is not None or pool.worker_contexts is not None:
        return pool
    given = {name: getattr(pool, name) for name in pool.model_fields_set}
    return type(pool)(**{**given, "size": workers})
