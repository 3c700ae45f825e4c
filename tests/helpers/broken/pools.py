"""Pools that are broken in what they do with tasks and results."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from typing_extensions import override

import pparallel_local
from broken.harness import Backends, rejected_by
from pparallel.interfaces.pool import Batch, PoolResult, ResultStream, Sink
from pparallel.plugin import Backend, hookimpl
from pparallel.runtime.member import Member
from pparallel.testing import PoolSuite
from pparallel_local import ThreadPoolConfig
from pparallel_local.thread_pool import ThreadPool

R = TypeVar("R")

backends = Backends(ThreadPoolConfig, pparallel_local)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return backends.records


class BrokenPoolSuite(PoolSuite):
    """Loses patience soon: much of what it waits for never comes."""

    patience: ClassVar[float] = 0.5


class ChangedSink(Sink):
    """Passes on what it is told; a fault overrides one method."""

    def __init__(self, batch: Batch, sink: Sink) -> None:
        self.sink = sink
        self.size = len(batch.items)
        self.piecewise, self.prompt = sink.piecewise, sink.prompt
        self.observed = sink.observed

    @property
    @override
    def cancelled(self) -> bool:
        return self.sink.cancelled

    @override
    def begin(self) -> bool:
        return self.sink.begin()

    @override
    def started(self, index: int, worker: str) -> None:
        self.sink.started(index, worker)

    @override
    def retried(self, index: int, error: BaseException) -> None:
        self.sink.retried(index, error)

    @override
    def done(self, first: int, values: Sequence[Any]) -> None:
        self.sink.done(first, values)

    @override
    def failed(self, index: int, error: BaseException) -> None:
        self.sink.failed(index, error)

    @override
    def abort(self, error: BaseException) -> None:
        self.sink.abort(error)


class ChangedPool(ThreadPool):
    """Changes the function of each batch, or its sink: a fault overrides one of them."""

    Told: ClassVar[type[ChangedSink]] = ChangedSink

    def __init__(self, config: ThreadPoolConfig, *, member: Member) -> None:
        super().__init__(config, member=member)
        self.count = itertools.count(1)

    def changed(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return func

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        if batch.items:
            batch, sink = batch._replace(func=self.changed(batch.func)), self.Told(batch, sink)
        super().carry(batch, sink)


# -- tasks and results -------------------------------------------------------------------------


class DropsOneInAThousand(ChangedPool):
    """Does not run each thousandth task."""

    @override
    def changed(self, func: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return func(*args, **kwargs) if next(self.count) % 1000 else None

        return call


@rejected_by("test_every_task_runs_once", "test_results_are_in_order")
class TestDropsOneInAThousand(BrokenPoolSuite):
    config = backends.config(DropsOneInAThousand)


class LosesAReport(ChangedPool):
    """Runs each task, and once tells nobody."""

    class Told(ChangedSink):
        count = itertools.count(1)

        @override
        def done(self, first: int, values: Sequence[Any]) -> None:
            if next(self.count) != 100:
                self.sink.done(first, values)


@rejected_by("test_every_task_runs_once", hangs=True)
class TestLosesAReport(BrokenPoolSuite):
    config = backends.config(LosesAReport)


class RunsTwice(ChangedPool):
    """Runs each five-hundredth task again, as if its result had been lost."""

    @override
    def changed(self, func: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(self.count) % 500 == 0:
                func(*args, **kwargs)
            return func(*args, **kwargs)

        return call


@rejected_by("test_every_task_runs_once")
class TestRunsTwice(BrokenPoolSuite):
    config = backends.config(RunsTwice)


class ReportsTwice(ChangedPool):
    """Reports each hundredth result again, as after a lost acknowledgement."""

    class Told(ChangedSink):
        count = itertools.count(1)

        @override
        def done(self, first: int, values: Sequence[Any]) -> None:
            for _ in range(2 if next(self.count) % 100 == 0 else 1):
                self.sink.done(first, values)


@rejected_by("test_imap_gives_all_results", hangs=True)
class TestReportsTwice(BrokenPoolSuite):
    config = backends.config(ReportsTwice)


class SwapsTwoResults(ChangedPool):
    """Reports two results of a large batch in each other's place."""

    class Told(ChangedSink):
        @override
        def done(self, first: int, values: Sequence[Any]) -> None:
            swapped = [values[1], values[0], *values[2:]] if len(values) >= 1000 else values
            self.sink.done(first, swapped)


@rejected_by("test_results_are_in_order")
class TestSwapsTwoResults(BrokenPoolSuite):
    config = backends.config(SwapsTwoResults)


class LastComesFirst(ThreadPool):
    """Keeps its batches in a stack."""

    def __init__(self, config: ThreadPoolConfig, *, member: Member) -> None:
        super().__init__(config, member=member)
        self._queue: Any = queue.LifoQueue()


@rejected_by("test_tasks_start_in_order")
class TestLastComesFirst(BrokenPoolSuite):
    config = backends.config(LastComesFirst)


class ListsFirst(ThreadPool):
    """Makes a list of what ``imap`` is given."""

    @override
    def imap(
        self, func: Callable[[Any], R], iterable: Iterable[Any], chunksize: int = 1
    ) -> ResultStream[R]:
        return super().imap(func, list(iterable), chunksize)


@rejected_by("test_imap_is_bounded", "test_an_iterable_that_raises")
class TestListsFirst(BrokenPoolSuite):
    config = backends.config(ListsFirst)


class HoldsResultsBack(ChangedPool):
    """Reports the results of an ``imap`` when all of them are there."""

    class Told(ChangedSink):
        def __init__(self, batch: Batch, sink: Sink) -> None:
            super().__init__(batch, sink)
            self.values: dict[int, Any] = {}

        @override
        def done(self, first: int, values: Sequence[Any]) -> None:
            self.values.update(enumerate(values, first))
            if len(self.values) == self.size:
                self.sink.done(0, [self.values[each] for each in range(self.size)])


@rejected_by("test_unordered_results_come_at_once", "test_ordered_results_come_at_once")
class TestHoldsResultsBack(BrokenPoolSuite):
    config = backends.config(HoldsResultsBack)


# -- cancelling, calling back, failing ---------------------------------------------------------


class IgnoresCancellation(ChangedPool):
    """Runs what was cancelled, whatever the sink says."""

    class Told(ChangedSink):
        @override
        def begin(self) -> bool:
            return self.sink.begin() or True


@rejected_by("test_cancel_before_the_start")
class TestIgnoresCancellation(BrokenPoolSuite):
    config = backends.config(IgnoresCancellation)


class NeverSaysThatItBegins(ChangedPool):
    """Does not ask the sink, which lets a running call be cancelled."""

    class Told(ChangedSink):
        @override
        def begin(self) -> bool:
            return True


@rejected_by("test_cancel_before_the_start", "test_no_cancelling_after_the_start")
class TestNeverSaysThatItBegins(BrokenPoolSuite):
    config = backends.config(NeverSaysThatItBegins)


class CallsBackLater(ThreadPool):
    """Publishes a result, and then calls back."""

    @override
    def apply_async(
        self,
        func: Callable[..., R],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callable[[R], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> PoolResult[R]:
        handle = super().apply_async(func, args, kwds, None, error_callback)
        if callback is not None:
            handle.add_done_callback(lambda done: callback(done.result()))
        return handle


# If the task is done before the callback is known, that is called by the thread of the test, which
# waits for itself.
@rejected_by("test_a_result_waits_for_its_callback", hangs=True)
class TestCallsBackLater(BrokenPoolSuite):
    config = backends.config(CallsBackLater)


class DiesOfACallback(ThreadPool):
    """Loses its worker to a callback that raises."""

    @override
    def apply_async(
        self,
        func: Callable[..., R],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callable[[R], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> PoolResult[R]:
        def call() -> R:
            value = func(*args, **(kwds or {}))
            try:
                if callback is not None:
                    callback(value)
            except Exception:
                logging.getLogger(__name__).exception("%r failed", callback)
                threading.Event().wait()
            return value

        return super().apply_async(call, (), None, None, error_callback)


@rejected_by("test_a_callback_that_raises", hangs=True)
class TestDiesOfACallback(BrokenPoolSuite):
    config = backends.config(DiesOfACallback)


class SwallowsExceptions(ChangedPool):
    """Logs what a task raises, and returns None."""

    @override
    def changed(self, func: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return func(*args, **kwargs)
            except Exception:
                logging.getLogger(__name__).exception("a task failed")

        return call


@rejected_by(
    "test_a_task_that_raises",
    "test_a_failed_map_in_many",
    "test_imap_goes_on_after_a_failure",
    "test_callbacks",
)
class TestSwallowsExceptions(BrokenPoolSuite):
    config = backends.config(SwallowsExceptions)


class LosesTheType(ChangedPool):
    """Raises the text of what a task raised."""

    class Told(ChangedSink):
        @override
        def failed(self, index: int, error: BaseException) -> None:
            self.sink.failed(index, RuntimeError(str(error)).with_traceback(error.__traceback__))


@rejected_by("test_a_task_that_raises", "test_unordered_imap_goes_on_after_a_failure")
class TestLosesTheType(BrokenPoolSuite):
    config = backends.config(LosesTheType)


class LosesTheTraceback(ChangedPool):
    """Raises what a task raised, without saying where."""

    class Told(ChangedSink):
        @override
        def failed(self, index: int, error: BaseException) -> None:
            self.sink.failed(index, error.with_traceback(None))


@rejected_by("test_a_failure_shows_where_the_task_failed")
class TestLosesTheTraceback(BrokenPoolSuite):
    config = backends.config(LosesTheTraceback)


class DiesOfAnExit(ChangedPool):
    """Loses a task that exits."""

    class Told(ChangedSink):
        @override
        def failed(self, index: int, error: BaseException) -> None:
            if isinstance(error, Exception):
                self.sink.failed(index, error)


@rejected_by("test_a_task_that_exits")
class TestDiesOfAnExit(BrokenPoolSuite):
    config = backends.config(DiesOfAnExit)


class RunsAllOfAFailedMap(ChangedPool):
    """Goes on with a ``map`` that has failed."""

    class Told(ChangedSink):
        def __init__(self, batch: Batch, sink: Sink) -> None:
            super().__init__(batch, sink)
            self.piecewise = True


@rejected_by("test_the_first_failure_ends_a_map")
class TestRunsAllOfAFailedMap(BrokenPoolSuite):
    config = backends.config(RunsAllOfAFailedMap)


class FailsAtTheEnd(ChangedPool):
    """Tells of the first failure of a ``map`` once its last task has ended."""

    class Told(ChangedSink):
        def __init__(self, batch: Batch, sink: Sink) -> None:
            super().__init__(batch, sink)
            self.piecewise = True
            self.left = self.size
            self.first: tuple[int, BaseException] | None = None

        @override
        def done(self, first: int, values: Sequence[Any]) -> None:
            self.left -= len(values)
            self.sink.done(first, values)
            self.tell()

        @override
        def failed(self, index: int, error: BaseException) -> None:
            self.left -= 1
            self.first = self.first or (index, error)
            self.tell()

        def tell(self) -> None:
            if self.left == 0 and self.first is not None:
                self.sink.failed(*self.first)


@rejected_by("test_the_first_failure_is_raised_at_once")
class TestFailsAtTheEnd(BrokenPoolSuite):
    config = backends.config(FailsAtTheEnd)
