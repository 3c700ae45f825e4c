"""Pools of processes that are broken: in what they do when a worker dies, and in what they copy."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typing_extensions import override

import pparallel_process
from broken.harness import Backends, rejected_by
from broken.pools import ChangedSink
from pparallel.errors import ClosedError, TaskTimeoutError, WorkerLostError
from pparallel.interfaces.pool import Batch, Sink
from pparallel.interfaces.serializer import Serializer
from pparallel.plugin import Backend, hookimpl
from pparallel.runtime.member import Member
from pparallel.runtime.streams import Streams
from pparallel.testing import PoolSuite
from pparallel_process import ProcessPoolConfig
from pparallel_process.pool import ProcessPool

backends = Backends(ProcessPoolConfig, pparallel_process)
PRELOAD = ("numpy", "torch", "pparallel.testing.pool.tasks")
LEFT: list[Any] = []  #: what is left behind for good: a later test is not to hear of its end
SEGMENT = Path(f"/dev/shm/pparallel-broken-{os.getpid()}")


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return backends.records


@pytest.fixture(autouse=True, scope="module")
def _swept() -> Iterator[None]:
    yield
    SEGMENT.unlink(missing_ok=True)


class ToldSink(ChangedSink):
    """Knows its pool and its batch, and is told of a lost worker apart; a fault overrides that."""

    def __init__(self, pool: ChangedPool, batch: Batch, sink: Sink) -> None:
        super().__init__(batch, sink)
        self.pool, self.batch = pool, batch

    @override
    def failed(self, index: int, error: BaseException) -> None:
        if isinstance(error, WorkerLostError):
            self.lost(index, error)
        else:
            self.sink.failed(index, error)

    def lost(self, index: int, error: WorkerLostError) -> None:
        self.sink.failed(index, error)


class ChangedPool(ProcessPool):
    """Changes its config, the function of each batch, or its sink."""

    Told: ClassVar[type[ToldSink]] = ToldSink
    changes: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        config: ProcessPoolConfig,
        *,
        member: Member,
        serializer: Serializer,
        name: str,
        streams: Streams,
    ) -> None:
        parts: dict[str, Any] = {"member": member, "serializer": serializer}
        super().__init__(self.told_of(config), name=name, streams=streams, **parts)
        self.asked = config
        self.kept: list[Any] = []

    def told_of(self, config: ProcessPoolConfig) -> ProcessPoolConfig:
        return config.model_copy(update=self.changes)

    def changed(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return func

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        if batch.items:
            sink = self.Told(self, batch, sink)
            batch = batch._replace(func=self.changed(batch.func))
        super().carry(batch, sink)


def config(broken: type, **options: Any) -> Any:
    return backends.config(broken, preload=PRELOAD, **options)


# -- the tasks of a worker that dies -----------------------------------------------------------


class ForgetsTheDead(ChangedPool):
    """Replaces a worker that died, and tells nobody (as multiprocessing.Pool does)."""

    class Told(ToldSink):
        @override
        def lost(self, index: int, error: WorkerLostError) -> None:
            pass


@rejected_by("test_a_worker_that_dies", "test_those_who_had_not_started_go_elsewhere")
class TestForgetsTheDead(PoolSuite):
    config = config(ForgetsTheDead)


class RunsAgain(ChangedPool):
    """Runs what a dead worker held once more, though nobody asked for it."""

    changes: ClassVar[dict[str, Any]] = {"retries": 1}


@rejected_by("test_a_death_is_described", "test_nothing_starts_twice", "test_any_sequence_of_calls")
class TestRunsAgain(PoolSuite):
    config = config(RunsAgain)


class BlamesABatchMate(ChangedPool):
    """Fails the task after the one that died."""

    class Told(ToldSink):
        guilty: int | None = None

        @override
        def lost(self, index: int, error: WorkerLostError) -> None:
            if self.guilty is None and index + 1 < len(self.batch.items):
                self.guilty, self.error = index, error
            else:
                self.sink.failed(index, error)

        @override
        def done(self, first: int, values: Sequence[Any]) -> None:
            for index, value in enumerate(values, first):
                if self.guilty is not None and index == self.guilty + 1:
                    self.sink.done(self.guilty, [None])
                    self.sink.failed(index, self.error)
                else:
                    self.sink.done(index, [value])


@rejected_by("test_those_who_had_not_started_go_elsewhere", "test_nothing_starts_twice")
class TestBlamesABatchMate(PoolSuite):
    config = config(BlamesABatchMate)


class FailsTheWholeBatch(ChangedPool):
    """Fails all tasks of a batch of which one killed its worker."""

    class Told(ToldSink):
        @override
        def lost(self, index: int, error: WorkerLostError) -> None:
            self.sink.abort(error)


@rejected_by("test_an_observed_task_that_dies")
class TestFailsTheWholeBatch(PoolSuite):
    config = config(FailsTheWholeBatch)


class BreaksWithItsWorker(ChangedPool):
    """Takes no work any more once a worker has died (as ProcessPoolExecutor does)."""

    class Told(ToldSink):
        @override
        def lost(self, index: int, error: WorkerLostError) -> None:
            self.pool.kept.append(error)
            self.sink.failed(index, error)

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        if self.kept and batch.items and sink.begin():
            sink.abort(self.kept[0])
        else:
            super().carry(batch, sink)


@rejected_by(
    "test_a_worker_that_dies", "test_a_death_is_described", "test_a_dead_worker_is_replaced"
)
class TestBreaksWithItsWorker(PoolSuite):
    config = config(BreaksWithItsWorker)


class LosesTheExitCode(ChangedPool):
    """Knows that a worker died, and not how."""

    class Told(ToldSink):
        @override
        def lost(self, index: int, error: WorkerLostError) -> None:
            self.sink.failed(index, WorkerLostError(error.pid, None))


@rejected_by("test_a_worker_that_dies", "test_a_death_is_described", "test_any_sequence_of_calls")
class TestLosesTheExitCode(PoolSuite):
    config = config(LosesTheExitCode)


class NamesTheWrongWorker(ChangedPool):
    """Names the worker that took the dead one's place."""

    class Told(ToldSink):
        @override
        def lost(self, index: int, error: WorkerLostError) -> None:
            self.sink.failed(index, WorkerLostError(error.pid + 1, error.exitcode))


@rejected_by("test_a_death_is_described", "test_all_workers_die_at_once")
class TestNamesTheWrongWorker(PoolSuite):
    config = config(NamesTheWrongWorker)


class ReportsWithTheNext(ChangedPool):
    """Keeps a report until there is another, which a death may come before."""

    class Told(ToldSink):
        @override
        def done(self, first: int, values: Sequence[Any]) -> None:
            self.pool.kept.append((self.sink, first, values))
            for sink, *report in self.pool.kept[:-1]:
                sink.done(*report)
            del self.pool.kept[:-1]


@rejected_by("test_what_was_reported_stays")
class TestReportsWithTheNext(PoolSuite):
    config = config(ReportsWithTheNext)


class TerminatesInNameOnly(ChangedPool):
    """Fails the calls of a terminated pool, and lets the workers work on."""

    class Told(ToldSink):
        def __init__(self, pool: ChangedPool, batch: Batch, sink: Sink) -> None:
            super().__init__(pool, batch, sink)
            pool.kept.append(self)

    @override
    def terminate(self) -> None:
        self.close()
        for each in self.kept:
            each.abort(ClosedError(repr(self), "was terminated"))

    @override
    def join(self) -> None:
        LEFT.append(self)


@rejected_by("test_terminate_ends_what_runs", "test_nothing_is_left_behind")
class TestTerminatesInNameOnly(PoolSuite):
    config = config(TerminatesInNameOnly)


# -- what a death leaves behind ----------------------------------------------------------------


class LeaksADescriptor(ChangedPool):
    """Does not close a dead worker's channel."""

    class Told(ToldSink):
        @override
        def lost(self, index: int, error: WorkerLostError) -> None:
            os.eventfd(0)
            self.sink.failed(index, error)


@rejected_by("test_a_worker_that_dies", "test_a_death_is_described")
class TestLeaksADescriptor(PoolSuite):
    config = config(LeaksADescriptor)


class LeaksASegment(ChangedPool):
    """Leaves a dead worker's shared memory in ``/dev/shm``."""

    class Told(ToldSink):
        @override
        def lost(self, index: int, error: WorkerLostError) -> None:
            SEGMENT.touch()
            self.sink.failed(index, error)


@rejected_by("test_a_worker_that_dies")
class TestLeaksASegment(PoolSuite):
    config = config(LeaksASegment)


class LeaksAProcess(ChangedPool):
    """Keeps a helper process for each pool, and forgets it."""

    @override
    def open(self) -> None:
        super().open()
        wait = "import sys; sys.stdin.read()"
        LEFT.append(subprocess.Popen([sys.executable, "-c", wait], stdin=subprocess.PIPE))


@rejected_by("test_nothing_is_left_behind")
class TestLeaksAProcess(PoolSuite):
    config = config(LeaksAProcess)


# -- options -----------------------------------------------------------------------------------


class IgnoresTimeouts(ChangedPool):
    """Lets a task take as long as it likes."""

    changes: ClassVar[dict[str, Any]] = {"task_timeout": None}


@rejected_by("test_a_task_that_takes_too_long", "test_a_timeout_is_one_tasks_own")
class TestIgnoresTimeouts(PoolSuite):
    config = config(IgnoresTimeouts)


class TimedSink(ToldSink):
    """Fails what has not ended some time after it was told to begin."""

    @override
    def begin(self) -> bool:
        if limit := self.pool.asked.task_timeout:
            error = TaskTimeoutError("the task", limit)
            self.timer = threading.Timer(limit, self.sink.abort, [error])
            self.timer.daemon = True
            self.timer.start()
        return super().begin()


class LeavesItRunning(ChangedPool):
    """Reports a time-out, and does nothing about the task."""

    changes: ClassVar[dict[str, Any]] = {"task_timeout": None}

    class Told(TimedSink):
        """The time-out is the sink's affair."""


@rejected_by("test_a_task_that_takes_too_long", "test_a_timeout_is_one_tasks_own")
class TestLeavesItRunning(PoolSuite):
    config = config(LeavesItRunning)


class TimesTheWholeBatch(ChangedPool):
    """Gives all tasks of a call the time of one."""

    class Told(TimedSink):
        """The pool times each task as well."""


@rejected_by("test_time_in_the_queue_does_not_count")
class TestTimesTheWholeBatch(PoolSuite):
    config = config(TimesTheWholeBatch)


class IgnoresRetries(ChangedPool):
    """Fails a task whose worker died, whatever it was told."""

    changes: ClassVar[dict[str, Any]] = {"retries": 0}


@rejected_by("test_retries", "test_retries_come_to_an_end")
class TestIgnoresRetries(PoolSuite):
    config = config(IgnoresRetries)


class RetriesForEver(ChangedPool):
    """Runs a task that kills its worker again and again."""

    changes: ClassVar[dict[str, Any]] = {"retries": 100}


@rejected_by("test_retries_come_to_an_end")
class TestRetriesForEver(PoolSuite):
    config = config(RetriesForEver)


class Stubborn:
    """Calls a function once more when it raises."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.func(*args, **kwargs)
        except Exception:  # noqa: BLE001 - the fault
            return self.func(*args, **kwargs)


class RetriesWhatRaises(ChangedPool):
    """Takes an exception for a worker's death."""

    @override
    def changed(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return Stubborn(func)


@rejected_by("test_what_raises_is_not_retried")
class TestRetriesWhatRaises(PoolSuite):
    config = config(RetriesWhatRaises)


class KeepsItsWorkers(ChangedPool):
    """Replaces no worker in time."""

    changes: ClassVar[dict[str, Any]] = {"max_tasks": None, "max_rss": None}


@rejected_by("test_max_tasks", "test_max_tasks_of_several_workers", "test_max_rss")
class TestKeepsItsWorkers(PoolSuite):
    config = config(KeepsItsWorkers)


class OneTaskTooMany(ChangedPool):
    """Counts a worker's tasks from 0."""

    @override
    def told_of(self, config: ProcessPoolConfig) -> ProcessPoolConfig:
        return config.model_copy(update={"max_tasks": (config.max_tasks or 0) + 1})


@rejected_by("test_max_tasks")
class TestOneTaskTooMany(PoolSuite):
    config = config(OneTaskTooMany)


class SharesOneStream(ChangedPool):
    """Seeds all its workers alike."""

    changes: ClassVar[dict[str, Any]] = {"initializer": "random:seed", "initargs": (1,)}


@rejected_by("test_worker_streams")
class TestSharesOneStream(PoolSuite):
    config = config(SharesOneStream)


class RetriesInSecret(ChangedPool):
    """Does not tell who watches that a task is run again."""

    class Told(ToldSink):
        @override
        def retried(self, index: int, error: BaseException) -> None:
            pass


@rejected_by("test_an_observed_task_that_is_retried")
class TestRetriesInSecret(PoolSuite):
    config = config(RetriesInSecret)


# -- what is copied ----------------------------------------------------------------------------

SEEN: dict[bytes, Any] = {}


def interned(value: Any) -> Any:
    """Return the first object of that value that this process has seen."""
    return SEEN.setdefault(pickle.dumps(value), value)


class Interning:
    """Calls a function with arguments that are kept for the next call."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*map(interned, args), **kwargs)


class CachesArguments(ChangedPool):
    """Sends an argument that a worker has had before only by its digest."""

    @override
    def changed(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return Interning(func)


@rejected_by("test_a_worker_may_write_to_its_argument")
class TestCachesArguments(PoolSuite):
    config = config(CachesArguments)


class CachesResults(ChangedPool):
    """Hands out one object for equal results."""

    class Told(ToldSink):
        @override
        def done(self, first: int, values: Sequence[Any]) -> None:
            self.sink.done(first, [interned(each) for each in values])


@rejected_by("test_results_are_the_callers_own", "test_results_outlive_the_pool")
class TestCachesResults(PoolSuite):
    config = config(CachesResults)


class LendsResults(ChangedPool):
    """Wipes the memory of results when it is joined, or the next ones come."""

    class Told(ToldSink):
        @override
        def done(self, first: int, values: Sequence[Any]) -> None:
            self.pool.kept.extend(each for each in values if isinstance(each, bytearray))
            self.sink.done(first, values)

    @override
    def join(self) -> None:
        super().join()
        for each in self.kept:
            each[0] = 255


@rejected_by("test_results_outlive_the_pool")
class TestLendsResults(PoolSuite):
    config = config(LendsResults)
