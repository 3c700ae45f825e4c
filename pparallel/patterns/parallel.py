"""Work handed to a pool input by input, and collected as it ends."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Self

from pparallel.builder import build, load
from pparallel.errors import ClosedError, TaskTimeoutError
from pparallel.interfaces.pool import Pool, PoolConfig
from pparallel.patterns.departures import departures
from pparallel.patterns.waiting import waking
from pparallel.runtime.program_end import end_with_program


class Parallelizable:
    """Base of a unit of work that :class:`Parallel` runs for many inputs at once."""

    def forward_backward(self, x: Any) -> Any:
        """Return the result for the input *x*; called by several workers at once."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Outcome:
    value: Any = None
    error: BaseException | None = None


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
        self._work: Callable[[Any], Any] = _forward_backward(parallizable)
        self._serial = num_workers if serial_init else 0
        self._lock = threading.Condition()
        self._outstanding = 0
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._closed = False
        self._pool: Pool | None = None
        self._own: _OwnPool | None = None
        if isinstance(pool, Pool):
            self._pool = pool if num_workers else None
            return
        config = _config(pool, num_workers)
        if num_workers:
            self._pool = build(config).__enter__()
            self._own = _OwnPool(self._pool)
            self._departed = departures.watch(self, self._own.end_in_the_background)

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
            self._run_here(x) if here else self._hand_over(x)
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
            with waking(lambda why: self._outcomes.put(_Outcome(error=why))):
                outcome = self._next(timeout)
        except BaseException:
            with self._lock:
                self._outstanding += 1
            raise
        if outcome.error is None:
            return outcome.value
        try:
            raise outcome.error
        finally:
            del outcome  # no cycle of exception, traceback and this frame

    def close(self) -> None:
        """Take no more, and end the pool if it was made here; safe to call again.

        What was put is run first, and its results can be got still.
        """
        self._end(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._end(exc)

    # -- inside -------------------------------------------------------------------------------

    def _check_put(self) -> None:
        """Check that a result is to come, or is there; called under the lock."""
        if self._outstanding == 0:
            message = "there is nothing to get: each result of what was put was got already"
            raise RuntimeError(message)

    def _run_here(self, x: Any) -> None:
        try:
            outcome = _Outcome(self._work(x))
        except Exception as error:  # noqa: BLE001 - raised by get
            outcome = _Outcome(error=error)
        self._outcomes.put(outcome)

    def _hand_over(self, x: Any) -> None:
        assert self._pool is not None
        # Nothing here holds self: a task that is under way must not keep it from being collected.
        done, failed = partial(_done, self._outcomes), partial(_failed, self._outcomes)
        self._pool.apply_async(self._work, (x,), callback=done, error_callback=failed)

    def _next(self, timeout: float | None) -> _Outcome:
        found: list[_Outcome] = []

        def wait(limit: float | None) -> None:
            try:
                found.append(self._outcomes.get(timeout=limit))
            except queue.Empty:
                return

        deadline = None if timeout is None else monotonic() + timeout
        wait(0)
        while not found:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            if left == 0:
                raise TaskTimeoutError("the next result", timeout or 0.0)
            if self._pool is None:
                wait(left)
            else:  # it may use the calling thread meanwhile, or lend its place to another
                self._pool.attend(lambda: bool(found), wait, left)
        return found[0]

    def _end(self, error: BaseException | None) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        if self._own is not None:
            self._own.end(error)
            self._departed()


class _OwnPool:
    """A pool that was opened for one :class:`Parallel`, and ends once."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._ended = False
        end_with_program(pool)

    def end(self, error: BaseException | None = None) -> None:
        """Let the pool finish what it has, or after *error* what runs, and end."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        if error is None:
            self._pool.__exit__(None, None, None)
        else:
            self._pool.__exit__(type(error), error, error.__traceback__)

    def end_in_the_background(self) -> None:
        """As :meth:`end`, but nobody waits for it."""
        if not self._ended:
            name = "pparallel-parallel-end"
            threading.Thread(target=self.end, name=name, daemon=True).start()


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


def _done(outcomes: queue.SimpleQueue[_Outcome], value: Any) -> None:
    outcomes.put(_Outcome(value))


def _failed(outcomes: queue.SimpleQueue[_Outcome], error: BaseException) -> None:
    outcomes.put(_Outcome(error=error))
