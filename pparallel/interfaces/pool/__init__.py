"""Pool: run functions on a fixed set of workers."""

from __future__ import annotations

import importlib
import operator
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Annotated, Any, ClassVar, NoReturn, ParamSpec, TypeVar

from pydantic import Field, ValidationInfo, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError
from typing_extensions import override

from pparallel.config import BackendConfig
from pparallel.interfaces.pool.batch import NO_SINK, Batch, Carry, Observer, Sink, Style
from pparallel.interfaces.pool.executor import PoolExecutor
from pparallel.interfaces.pool.results import CallSink, MapSink, PoolResult
from pparallel.interfaces.pool.stream import QUICK_LOOKAHEAD, ResultStream, Work
from pparallel.interfaces.resource import Resource

__all__ = [
    "NO_SINK",
    "QUICK_LOOKAHEAD",
    "Batch",
    "Carry",
    "Observer",
    "Pool",
    "PoolConfig",
    "PoolResult",
    "ResultStream",
    "Sink",
    "Style",
]

P = ParamSpec("P")
R = TypeVar("R")
Initializer = Annotated[
    Callable[..., object] | str | None, WithJsonSchema({"type": ["string", "null"]})
]


class Pool(Resource):
    """A fixed set of workers that run functions.

    Any thread may call any method. ``with`` opens the pool; at its end it closes and joins it, or
    terminates it when an exception leaves the block.

    A backend fills in :meth:`open`, :meth:`close`, :meth:`join`, :meth:`terminate`, :meth:`size`
    and :meth:`carry`; it may override :meth:`attend` and :meth:`lookahead`.

    Guarantees:
        - Each task is run exactly once (``PoolSuite.test_every_task_runs_once``), whatever thread
          handed it over (``test_every_task_of_many_threads_runs_once``).
        - There are as many workers as :meth:`size` says (``PoolSuite.test_size``), and each runs
          one task at a time (``test_a_worker_runs_one_task_at_a_time``).
        - ``map`` and ``imap`` give results in the order of the items, ``imap_unordered`` as they
          come (``PoolSuite.test_results_are_in_order``, ``test_unordered_results_come_at_once``).
        - Tasks start in the order in which they were handed over
          (``PoolSuite.test_tasks_start_in_order``).
        - What a task raises is raised to its caller, with its type and message
          (``PoolSuite.test_a_task_that_raises``), and shows where
          (``test_a_failure_shows_where_the_task_failed``). A task that calls ``sys.exit`` fails
          with ``SystemExit`` and ends nothing else (``test_a_task_that_exits``).
        - A callback has run when the result can be had (``PoolSuite.test_callbacks``,
          ``test_a_result_waits_for_its_callback``). What it raises is logged and harms nothing
          (``test_a_callback_that_raises``).
        - The first failure fails a ``map`` at once
          (``PoolSuite.test_the_first_failure_is_raised_at_once``), and those of its tasks that
          have not started are not run (``test_the_first_failure_ends_a_map``). A failure in
          ``imap`` is raised at its place, and the iteration goes on
          (``PoolSuite.test_imap_goes_on_after_a_failure``).
        - ``imap`` takes a bounded number of items ahead: :meth:`lookahead`, or at most
          ``QUICK_LOOKAHEAD`` while tasks are quick (``PoolSuite.test_imap_is_bounded``).
        - A call can be cancelled until its first task starts
          (``PoolSuite.test_cancel_before_the_start``, ``test_no_cancelling_after_the_start``).
        - After :meth:`close` no call is taken, and those taken are finished
          (``PoolSuite.test_close_stops_intake_only``); ``imap`` goes on taking items
          (``test_imap_goes_on_after_close``) until :meth:`join`
          (``test_imap_ends_with_the_pool``), which waits for what was taken
          (``test_join_waits_for_what_was_taken``).
        - :meth:`terminate` fails what is not done with ``ClosedError`` and wakes whoever waits
          (``PoolSuite.test_terminate_wakes_those_who_wait``). No further task starts
          (``test_terminate_starts_nothing_more``), and a running one that cannot be ended is
          abandoned (``test_join_abandons_what_terminate_cannot_end``).
        - What has ended can be ended again (``PoolSuite.test_ending_twice``), and so can what was
          never open (``test_ending_what_was_never_open``).
        - Nothing of a finished task is kept (``PoolSuite.test_finished_tasks_are_forgotten``), and
          no thread, process or descriptor outlives the pool (``test_nothing_is_left_behind``).
        - A task that can reach its own pool may use it and wait for the result, with the methods
          of the result, ``map`` or ``imap``, at any depth (``PoolSuite.test_nested_use``); with
          ``concurrent.futures.wait`` or ``as_completed`` it holds its worker meanwhile.
        - The initializer runs in a worker before any task
          (``PoolSuite.test_an_initializer_runs_first``); one that raises fails all tasks with its
          exception, after at most three starts (``test_an_initializer_that_raises``).
        - A worker passes its own context to each function, and no other worker does
          (``PoolSuite.test_worker_contexts``, ``test_each_worker_has_its_context``).

    Features:
        - ``parallel``: tasks overlap in time (``PoolSuite.test_tasks_overlap``).
        - ``references``: arguments and results are passed as they are, not copied
          (``PoolSuite.test_passes_references``); without it, what arrives is the receiver's own
          (``PoolSuite.test_passes_copies``), and what cannot be sent raises
          ``SerializationError`` (``PoolSuite.test_what_cannot_be_sent``).
        - ``isolated``: a worker that dies fails its task alone, with ``WorkerLostError``, and is
          replaced (``PoolSuite.test_a_worker_that_dies``).
    """

    _observer: Observer | None = None

    @abstractmethod
    def size(self) -> int:
        """Return the number of workers, at least 1."""

    @abstractmethod
    def carry(self, batch: Batch, sink: Sink) -> None:
        """Run the tasks of *batch* and report them to *sink*; returns before they have run.

        Tasks start in the order of the items, batches in the order of the calls. The sink is
        asked to begin before the first task starts. Everything that goes wrong with a task is
        reported; the pool's end is reported by ``sink.abort``.

        Raises:
            ClosedError: the pool is not open, or was closed and the batch does not continue an
                earlier call. Raised for an empty batch too, for which nothing else is done.
        """

    @abstractmethod
    @override
    def close(self) -> None:
        """Take no more calls; safe to call again."""

    @abstractmethod
    def join(self) -> None:
        """Wait until all tasks have ended, and release the workers; safe to call again.

        Raises:
            ValueError: the pool takes calls still.
        """

    @abstractmethod
    def terminate(self) -> None:
        """Fail what is not done with ``ClosedError`` and stop the workers; safe to call again.

        A running task that cannot be ended by force is abandoned: :meth:`join` does not wait for
        it longer than about a second.
        """

    def lookahead(self) -> int:
        """Return how many items ``imap`` may take ahead of the results that were returned.

        0: an item is taken, and run, when its result is asked for.
        """
        return 4 * self.size() + 16

    def attend(
        self,
        ready: Callable[[], bool],
        wait: Callable[[float | None], object],
        timeout: float | None,
    ) -> None:
        """Wait for a result of this pool; called by the thread that needs it.

        Overridden by a pool in which that thread has something to do meanwhile. It returns when
        ``ready()``, or after *timeout* seconds, or earlier: it is then called again if need be.

        Args:
            ready: returns whether the result is there.
            wait: blocks until it is, or for the seconds given.
            timeout: seconds; ``None`` for no limit.
        """
        wait(timeout)

    def apply(
        self,
        func: Callable[..., R],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
    ) -> R:
        """Return ``func(*args, **kwds)``, run by a worker."""
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: Callable[..., R],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callable[[R], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> PoolResult[R]:
        """Have ``func(*args, **kwds)`` run by a worker, and return its result to come.

        The callbacks are called by the pool, with the value or the exception, before the result
        is ready; they should return at once.
        """
        _check_callable(func)
        handle: PoolResult[R] = PoolResult(self.attend)
        item = (tuple(args), dict(kwds or {}))
        self._hand_over(Batch(func, (item,), "call"), CallSink(handle, callback, error_callback))
        return handle

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> PoolResult[R]:
        """Have ``fn(*args, **kwargs)`` run by a worker, and return its future."""
        _check_callable(fn)
        handle: PoolResult[R] = PoolResult(self.attend)
        self._hand_over(Batch(fn, ((args, kwargs),), "call"), CallSink(handle))
        return handle

    def map(
        self, func: Callable[[Any], R], iterable: Iterable[Any], chunksize: int | None = None
    ) -> list[R]:
        """Return ``[func(item) for item in iterable]``, run by the workers.

        *chunksize* is a hint: how many tasks to hand to a worker at once.
        """
        return self.map_async(func, iterable, chunksize).get()

    def map_async(
        self,
        func: Callable[[Any], R],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[list[R]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> PoolResult[list[R]]:
        """Like :meth:`map`, but return the result to come; callbacks as in :meth:`apply_async`."""
        batch = Batch(func, _listed(iterable), "one", chunksize)
        return self._mapped(batch, callback, error_callback)

    def starmap(
        self,
        func: Callable[..., R],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
    ) -> list[R]:
        """Return ``[func(*item) for item in iterable]``, run by the workers."""
        return self.starmap_async(func, iterable, chunksize).get()

    def starmap_async(
        self,
        func: Callable[..., R],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[list[R]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> PoolResult[list[R]]:
        """Like :meth:`starmap`, but return the result to come; see :meth:`map_async`."""
        batch = Batch(func, _listed(iterable), "star", chunksize)
        return self._mapped(batch, callback, error_callback)

    def imap(
        self, func: Callable[[Any], R], iterable: Iterable[Any], chunksize: int = 1
    ) -> ResultStream[R]:
        """Return an iterator over the results in the order of the items, each as it is there."""
        return self._streamed(func, iterable, chunksize, ordered=True)

    def imap_unordered(
        self, func: Callable[[Any], R], iterable: Iterable[Any], chunksize: int = 1
    ) -> ResultStream[R]:
        """Return an iterator over the results in the order in which tasks end."""
        return self._streamed(func, iterable, chunksize, ordered=False)

    def as_executor(self) -> Executor:
        """Return an executor that runs its calls here; shutting it down leaves the pool open."""
        return PoolExecutor(self)

    def observed_by(self, observer: Observer | None) -> None:
        """Have *observer* hand all batches over, ``None``: nobody; set while somebody watches."""
        self._observer = observer

    def _hand_over(self, batch: Batch, sink: Sink) -> None:
        observer = self._observer
        if observer is None:
            self.carry(batch, sink)
        else:
            observer(self.carry, batch, sink)

    def _mapped(
        self,
        batch: Batch,
        callback: Callable[[list[R]], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> PoolResult[list[R]]:
        _check_callable(batch.func)
        _check_chunksize(batch.chunksize)
        handle: PoolResult[list[R]] = PoolResult(self.attend)
        sink: MapSink[R] = MapSink(handle, len(batch.items), callback, error_callback)
        self._hand_over(batch, sink)
        if not batch.items and sink.begin():
            sink.finish([])
        return handle

    def _streamed(
        self, func: Callable[[Any], R], iterable: Iterable[Any], chunksize: int, *, ordered: bool
    ) -> ResultStream[R]:
        _check_callable(func)
        _check_chunksize(chunksize)
        self.carry(Batch(func, ()), NO_SINK)
        work = Work(self._hand_over, self.attend, func, self.lookahead(), chunksize)
        return ResultStream(work, iterable, ordered=ordered)

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size()})"

    @override
    def __reduce__(self) -> NoReturn:
        message = "pool objects cannot be passed between processes or pickled"
        raise NotImplementedError(message)

    @override
    def release(self, error: BaseException | None) -> None:
        """Close and join, or after an exception terminate and join."""
        if error is None:
            self.close()
        else:
            self.terminate()
        self.join()


class PoolConfig(BackendConfig[Pool], frozen=True):
    """What every pool is told.

    Attributes:
        size: number of workers; ``None``: one for each of ``worker_contexts``, or else as many
            as there are CPUs that this process may use.
        initializer: called in each worker as it starts; a function, or ``"module:function"``.
        initargs: its arguments.
        worker_contexts: one value per worker, passed to the functions that the worker runs as
            their first argument; ``None``: nothing is passed.
    """

    interface: ClassVar[str] = "pool"
    size: int | None = Field(default=None, ge=1)
    initializer: Initializer = None
    initargs: tuple[Any, ...] = ()
    worker_contexts: tuple[Any, ...] | None = None

    @field_validator("initializer")
    @classmethod
    def _names_a_function(cls, value: object) -> object:
        module, _, function = value.partition(":") if isinstance(value, str) else ("x", "", "x")
        if not (module and function):
            raise PydanticCustomError("initializer", "an initializer reads 'module:function'")
        return value

    @field_validator("worker_contexts")
    @classmethod
    def _is_as_long_as_size(
        cls, value: tuple[Any, ...] | None, info: ValidationInfo
    ) -> tuple[Any, ...] | None:
        size = info.data.get("size")
        if value is not None and len(value) != (size or len(value) or 1):
            raise PydanticCustomError(
                "worker_contexts",
                "the number of contexts, {count}, is not equal to the number of workers, {size}",
                {"count": len(value), "size": size or 1},
            )
        return value

    @property
    def workers(self) -> int:
        """The number of workers that this config asks for."""
        if self.size is not None:
            return self.size
        return len(self.worker_contexts) if self.worker_contexts else usable_cpus()

    def context(self, worker: int) -> tuple[Any, ...]:
        """Return what *worker*, numbered from 0, passes first to the functions it runs."""
        return () if self.worker_contexts is None else (self.worker_contexts[worker],)

    def initialize(self) -> None:
        """Run the initializer in the calling thread; raises what it raises."""
        initializer = self.initializer
        if isinstance(initializer, str):
            module, _, name = initializer.partition(":")
            initializer = operator.attrgetter(name)(importlib.import_module(module))
        if initializer is not None:
            initializer(*self.initargs)


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _listed(iterable: Iterable[Any]) -> Sequence[Any]:
    return iterable if isinstance(iterable, tuple | range) else list(iterable)


def _check_callable(func: object) -> None:
    if not callable(func):
        message = f"a pool runs functions: {func!r} is not callable"
        raise TypeError(message)


def _check_chunksize(chunksize: int | None) -> None:
    if chunksize is not None and chunksize < 1:
        message = f"chunksize must be at least 1, not {chunksize}"
        raise ValueError(message)
