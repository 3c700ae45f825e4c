"""The interface: what every pool does, and what a backend fills in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Self, TypeVar
from weakref import WeakSet

from typing_extensions import override

from pparallel.errors import ConfigError
from pparallel.interfaces.pool.arguments import (
    arguments,
    check_callable,
    check_chunksize,
    listed,
    unpackable,
)
from pparallel.interfaces.pool.batch import NO_SINK, Batch, Observer, Sink
from pparallel.interfaces.pool.names import name_of
from pparallel.interfaces.pool.progress import Meter, MeteredSink, Metering, count_of
from pparallel.interfaces.pool.results import PoolResult, Publishing
from pparallel.interfaces.pool.sinks import CallSink, MapSink
from pparallel.interfaces.pool.stream import ResultStream, Work
from pparallel.interfaces.resource import Resource

P = ParamSpec("P")
R = TypeVar("R")


class Pool(Resource):
    """A fixed set of workers that run functions.

    Any thread may call any method. ``with`` opens the pool; at its end it closes and joins it, or
    terminates it when an exception leaves the block, or Ctrl-C comes while it joins.

    A backend fills in :meth:`open`, :meth:`close`, :meth:`join`, :meth:`terminate`, :meth:`size`
    and :meth:`carry`; it may override :meth:`attend` and :meth:`lookahead`.

    Guarantees:
        - Each task is run exactly once (``PoolSuite.test_every_task_runs_once``), whatever thread
          handed it over (``test_every_task_of_many_threads_runs_once``).
        - There are as many workers as :meth:`size` says (``PoolSuite.test_size``), and each runs
          one task at a time (``test_a_worker_runs_one_task_at_a_time``).
        - ``map`` and ``imap`` give results in the order of the items, ``imap_unordered`` as they
          come (``PoolSuite.test_results_are_in_order``, ``test_unordered_results_come_at_once``).
        - The tasks of one call start in the order of its items
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
          (``PoolSuite.test_cancel_before_the_start``, ``test_no_cancelling_after_the_start``), or
          is sent ahead to a process that is busy with another.
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
        - Threads may mix calls as they like (``PoolSuite.test_many_threads_mix_calls``), a pool
          outlives the thread that opened it (``test_a_pool_outlives_the_thread_that_opened_it``),
          and pools do not disturb one another (``test_two_pools_at_once``).
        - A sink that observes is told of each task's start, and by which worker, and of its end
          (``PoolSuite.test_an_observed_task_starts_and_ends_once``).
        - All of this holds whatever was called before, in whatever order
          (``PoolSuite.test_any_sequence_of_calls``).

    Features:
        - ``parallel``: tasks overlap in time (``PoolSuite.test_tasks_overlap``).
        - ``references``: arguments and results are passed as they are, not copied
          (``PoolSuite.test_passes_references``). Without it, what arrives is the receiver's own
          (``PoolSuite.test_passes_copies``, ``test_a_worker_may_write_to_its_argument``,
          ``test_results_are_the_callers_own``, ``test_what_is_kept_stays_as_it_was``), even when
          the pool or the worker is gone (``test_results_outlive_the_pool``,
          ``test_results_outlive_their_worker``). What cannot be sent, or fails as it is pickled or
          rebuilt, raises ``SerializationError`` (``PoolSuite.test_what_cannot_be_sent``,
          ``test_what_fails_on_the_way``, ``test_one_that_fails_on_the_way_among_many``). An
          exception that cannot be sent is raised as ``RemoteError``
          (``PoolSuite.test_an_exception_that_cannot_be_sent``). A task may make a pool of its own
          (``PoolSuite.test_a_pool_in_a_task``).
        - ``isolated``: workers are processes (``PoolSuite.test_workers_are_processes``), each with
          random streams of its own (``test_worker_streams``). A task whose worker dies fails with
          ``WorkerLostError``, which says which process it was and how it ended
          (``PoolSuite.test_a_worker_that_dies``, ``test_a_death_is_described``,
          ``test_a_death_fails_a_map_at_once``, ``test_an_observed_task_that_dies``). Tasks of the
          same batch that had not started are run by others
          (``PoolSuite.test_those_who_had_not_started_go_elsewhere``); what was reported stays
          (``test_what_was_reported_stays``); what had ended a moment before, and was not reported
          yet, is lost with the worker, and so may be tasks of microseconds that are run as one
          group; nothing starts twice (``test_nothing_starts_twice``,
          ``test_many_threads_and_deaths``). The worker is replaced
          (``PoolSuite.test_a_dead_worker_is_replaced``, ``test_all_workers_die_at_once``), at no
          cost if it was idle (``test_an_idle_worker_that_dies_costs_no_task``). Workers that die
          as they start fail the pool's tasks, after at most three starts
          (``PoolSuite.test_a_worker_that_dies_as_it_starts``). ``join`` and ``terminate`` end
          whatever the workers do (``PoolSuite.test_a_death_while_the_pool_closes``,
          ``test_terminate_ends_what_runs``).
        - Options that an isolated pool may have: ``retries``, how often a task whose worker died is
          run again (``PoolSuite.test_retries``, ``test_retries_come_to_an_end``,
          ``test_an_observed_task_that_is_retried``), while what it raises is final
          (``test_what_raises_is_not_retried``); ``task_timeout``, the seconds that a task may take
          before it fails with ``TaskTimeoutError`` and its worker is replaced
          (``test_a_task_that_takes_too_long``, ``test_a_timeout_is_one_tasks_own``,
          ``test_time_in_the_queue_does_not_count``); ``max_tasks`` and ``max_rss``, the tasks and
          the memory after which a worker is replaced (``test_max_tasks``,
          ``test_max_tasks_of_several_workers``, ``test_max_rss``).
    """

    _observer: Observer | None = None
    _metering: Metering | None = None
    _meters: WeakSet[Meter] | None = None
    _publishing: Publishing | None = None  # made when first needed: backends have no constructor

    if not TYPE_CHECKING:  # a type checker knows that it is abstract

        def __new__(cls, *_args: object, **_options: object) -> Self:
            """Refuse an object of the interface itself, and say how one is built."""
            if cls is Pool:
                from pparallel.interfaces.pool.config import PoolConfig  # which imports this module

                raise ConfigError(PoolConfig.how_to_build(cls.__name__))
            return super().__new__(cls)

    @abstractmethod
    def size(self) -> int:
        """Return the number of workers, at least 1."""

    @abstractmethod
    def carry(self, batch: Batch, sink: Sink) -> None:
        """Run the tasks of *batch* and report them to *sink*; returns before they have run.

        Tasks start in the order of the items. The sink is asked to begin before the first starts.
        Everything that goes wrong with a task is reported; the pool's end is reported by
        ``sink.abort``.

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
        check_callable(func)
        item = (arguments(args), dict(kwds or {}))
        return self._called(Batch(func, (item,), "call", awaited=True)).result()

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
        check_callable(func)
        item = (arguments(args), dict(kwds or {}))
        return self._called(Batch(func, (item,), "call"), callback, error_callback)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> PoolResult[R]:
        """Have ``fn(*args, **kwargs)`` run by a worker, and return its future."""
        check_callable(fn)
        return self._called(Batch(fn, ((args, kwargs),), "call"))

    def map(
        self, func: Callable[[Any], R], iterable: Iterable[Any], chunksize: int | None = None
    ) -> list[R]:
        """Return ``[func(item) for item in iterable]``, run by the workers.

        *chunksize* is a hint: how many tasks to hand to a worker at once.
        """
        batch = Batch(func, listed(iterable), "one", chunksize, awaited=True)
        return self._mapped(batch).result()

    def map_async(
        self,
        func: Callable[[Any], R],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[list[R]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> PoolResult[list[R]]:
        """Like :meth:`map`, but return the result to come; callbacks as in :meth:`apply_async`."""
        batch = Batch(func, listed(iterable), "one", chunksize)
        return self._mapped(batch, callback, error_callback)

    def starmap(
        self,
        func: Callable[..., R],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
    ) -> list[R]:
        """Return ``[func(*item) for item in iterable]``, run by the workers."""
        batch = Batch(func, unpackable(iterable), "star", chunksize, awaited=True)
        return self._mapped(batch).result()

    def starmap_async(
        self,
        func: Callable[..., R],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[list[R]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> PoolResult[list[R]]:
        """Like :meth:`starmap`, but return the result to come; see :meth:`map_async`."""
        batch = Batch(func, unpackable(iterable), "star", chunksize)
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
        from pparallel.interfaces.pool.executor import PoolExecutor

        return PoolExecutor(self)

    def observed_by(self, observer: Observer | None) -> None:
        """Have *observer* hand all batches over, ``None``: nobody; set while somebody watches."""
        self._observer = observer

    def measured_by(self, metering: Metering | None) -> None:
        """Have calls of many tasks tell how far they are, to a meter that *metering* makes."""
        self._metering = metering

    def hand_over(self, batch: Batch, sink: Sink) -> None:
        """Have *batch* carried as all calls have theirs: watched, while somebody watches."""
        observer = self._observer
        if observer is None:
            self.carry(batch, sink)
        else:
            observer(self.carry, batch, sink)

    def _share(self) -> Publishing:
        self._publishing = Publishing()
        return self._publishing

    def _called(
        self,
        batch: Batch,
        callback: Callable[[R], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> PoolResult[R]:
        handle: PoolResult[R] = PoolResult(self.attend, self._publishing or self._share())
        self.hand_over(batch, CallSink(handle, callback, error_callback))
        return handle

    def _mapped(
        self,
        batch: Batch,
        callback: Callable[[list[R]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> PoolResult[list[R]]:
        check_callable(batch.func)
        check_chunksize(batch.chunksize)
        handle: PoolResult[list[R]] = PoolResult(self.attend, self._publishing or self._share())
        sink: MapSink[R] = MapSink(handle, len(batch.items), callback, error_callback)
        meter = self._meter(batch.func, batch.items) if batch.items else None
        if meter is None:
            self.hand_over(batch, sink)
        else:
            self.hand_over(batch, MeteredSink(sink, meter, len(batch.items)))
        if not batch.items and sink.begin():
            sink.finish([])
        return handle

    def _meter(self, func: Callable[..., object], items: Iterable[Any]) -> Meter | None:
        metering = self._metering
        if metering is None:
            return None
        meter = metering(name_of(func), count_of(items))
        if self._meters is None:
            self._meters = WeakSet()
        self._meters.add(meter)
        return meter

    def _streamed(
        self, func: Callable[[Any], R], iterable: Iterable[Any], chunksize: int, *, ordered: bool
    ) -> ResultStream[R]:
        check_callable(func)
        check_chunksize(chunksize)
        self.carry(Batch(func, ()), NO_SINK)
        meter = self._meter(func, iterable)
        work = Work(self.hand_over, self.attend, func, self.lookahead(), chunksize, meter)
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
        """Close and join, or after an exception, or Ctrl-C meanwhile, terminate and join."""
        try:
            if error is None:
                self.close()
            else:
                self.terminate()
            self.join()
        except (KeyboardInterrupt, SystemExit):
            self.terminate()
            self.join()
            raise
        finally:
            for meter in list(self._meters or ()):
                meter.close()  # of a stream that nobody asks for more
