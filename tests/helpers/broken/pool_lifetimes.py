"""Pools that are broken in how they end, in what they keep, and in their workers."""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from typing_extensions import override

import pparallel_local
from broken.harness import Backends, rejected_by
from broken.pools import BrokenPoolSuite, ChangedPool, ChangedSink
from pparallel.errors import ClosedError
from pparallel.interfaces.pool import Batch, Pool, PoolState, Sink
from pparallel.plugin import Backend, hookimpl
from pparallel.runtime.member import Member
from pparallel.runtime.threads import Slot
from pparallel_local import SerialPoolConfig, ThreadPoolConfig
from pparallel_local.serial_pool import SerialPool
from pparallel_local.thread_pool import ThreadPool

backends = Backends(ThreadPoolConfig, pparallel_local)
serial_backends = Backends(SerialPoolConfig, pparallel_local)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return [*backends.records, *serial_backends.records]


# -- closing, joining, terminating -------------------------------------------------------------


class ClosingCancels(ThreadPool):
    """Drops what was taken when it is closed."""

    @override
    def close(self) -> None:
        super().close()
        self.terminate()


@rejected_by("test_close_stops_intake_only", "test_the_end_of_with_waits")
class TestClosingCancels(BrokenPoolSuite):
    config = backends.config(ClosingCancels)


class JoinsEarly(ThreadPool):
    """Returns from join before tasks have ended."""

    @override
    def join(self) -> None:
        self._state.check_joinable(self)
        threading.Thread(target=super().join, daemon=True).start()


@rejected_by("test_join_waits_for_what_was_taken")
class TestJoinsEarly(BrokenPoolSuite):
    config = backends.config(JoinsEarly)


class JoinsForEver(ThreadPool):
    """Waits for its threads after termination too, whatever they do."""

    @override
    def join(self) -> None:
        threads = list(self._threads)
        super().join()
        for each in threads:
            each.join()


@rejected_by("test_join_abandons_what_terminate_cannot_end")
class TestJoinsForEver(BrokenPoolSuite):
    config = backends.config(JoinsForEver)


class NeverRefuses(ThreadPool):
    """Runs in the caller what comes too early or too late."""

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        if self._state is PoolState.OPEN or batch.continues:
            super().carry(batch, sink)
        elif sink.begin():
            sink.done(0, [batch.bound()(each) for each in batch.items])


@rejected_by(
    "test_use_before_open", "test_close_stops_intake_only", "test_ending_what_was_never_open"
)
class TestNeverRefuses(BrokenPoolSuite):
    config = backends.config(NeverRefuses)


class ClosesOnce(ThreadPool):
    """Cannot be closed twice."""

    @override
    def close(self) -> None:
        if self._state is not PoolState.OPEN:
            raise ClosedError(repr(self), self._state.value)
        super().close()


@rejected_by("test_ending_twice", "test_ending_what_was_never_open")
class TestClosesOnce(BrokenPoolSuite):
    config = backends.config(ClosesOnce)


class WakesNobody(ThreadPool):
    """Forgets, when it is terminated, those who wait."""

    @override
    def _abort(self, error: BaseException) -> None:
        for job in list(self._live):
            job.drain()
            self._forget(job)


@rejected_by("test_terminate_wakes_those_who_wait", "test_callbacks_of_a_terminated_pool")
class TestWakesNobody(BrokenPoolSuite):
    config = backends.config(WakesNobody)


class WorksOn(ThreadPool):
    """Goes on with tasks whose callers were told of its termination."""

    @override
    def terminate(self) -> None:
        self.close()
        for job in list(self._live):
            job.sink.abort(ClosedError(repr(self), PoolState.TERMINATED.value))


@rejected_by("test_terminate_starts_nothing_more")
class TestWorksOn(BrokenPoolSuite):
    config = backends.config(WorksOn)


# -- what is kept ------------------------------------------------------------------------------


class LeaksAThreadPerTask(ChangedPool):
    """Starts a thread for each task, which ends with the pool."""

    @override
    def changed(self, func: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            threading.Thread(target=self._wait_for_the_end, daemon=True).start()
            return func(*args, **kwargs)

        return call

    def _wait_for_the_end(self) -> None:
        with self._lock:
            self._quiet.wait_for(lambda: self._state is not PoolState.OPEN)

    @override
    def join(self) -> None:
        super().join()
        with self._lock:
            self._quiet.notify_all()


@rejected_by("test_nothing_is_left_behind")
class TestLeaksAThreadPerTask(BrokenPoolSuite):
    config = backends.config(LeaksAThreadPerTask)


class LeaksADescriptor(ThreadPool):
    """Never closes what wakes it."""

    @override
    def open(self) -> None:
        super().open()
        self.wakeup = os.eventfd(0)


@rejected_by("test_nothing_is_left_behind", "test_results_are_in_order")
class TestLeaksADescriptor(BrokenPoolSuite):
    config = backends.config(LeaksADescriptor)


class KeepsTasks(ThreadPool):
    """Remembers all that it was handed."""

    def __init__(self, config: ThreadPoolConfig, *, member: Member) -> None:
        super().__init__(config, member=member)
        self.taken: list[Batch] = []

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        self.taken.append(batch)
        super().carry(batch, sink)


@rejected_by("test_finished_tasks_are_forgotten")
class TestKeepsTasks(BrokenPoolSuite):
    config = backends.config(KeepsTasks)


class KeepsResults(ChangedPool):
    """Remembers the last result."""

    class Told(ChangedSink):
        last: ClassVar[Sequence[Any]] = ()

        @override
        def done(self, first: int, values: Sequence[Any]) -> None:
            type(self).last = values
            self.sink.done(first, values)


@rejected_by("test_finished_tasks_are_forgotten")
class TestKeepsResults(BrokenPoolSuite):
    config = backends.config(KeepsResults)


class PassesCopies(ChangedPool):
    """Declares ``references``, and copies."""

    @override
    def changed(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: copy.copy(func(*args, **kwargs))


@rejected_by("test_passes_references")
class TestPassesCopies(BrokenPoolSuite):
    config = backends.config(PassesCopies)


class PassesAliases(ThreadPool):
    """Passes references, and does not declare it."""

    features = frozenset({"parallel"})


@rejected_by("test_passes_copies", "test_what_cannot_be_sent")
class TestPassesAliases(BrokenPoolSuite):
    config = backends.config(PassesAliases)


# -- workers -----------------------------------------------------------------------------------


class OnlySaysParallel(SerialPool):
    """Declares ``parallel``, and runs one task after the other."""

    features = frozenset({"references", "parallel"})


@rejected_by("test_tasks_overlap", hangs=True)
class TestOnlySaysParallel(BrokenPoolSuite):
    config = serial_backends.config(OnlySaysParallel)


class LocksUpWhenNested(ThreadPool):
    """Lets a task that waits for another keep its worker."""

    attend = Pool.attend


@rejected_by("test_nested_use", hangs=True)
class TestLocksUpWhenNested(BrokenPoolSuite):
    config = backends.config(LocksUpWhenNested)


class HasOneWorkerMore(ThreadPool):
    """Starts a worker too many."""

    @override
    def open(self) -> None:
        super().open()
        with self._lock:
            Slot(self.size(), self._config.context(0)).employ(self._start_thread)


@rejected_by("test_a_worker_runs_one_task_at_a_time")
class TestHasOneWorkerMore(BrokenPoolSuite):
    config = backends.config(HasOneWorkerMore)


class CountsThreads(ThreadPool):
    """Takes all threads of the process for its own."""

    @override
    def size(self) -> int:
        return threading.active_count()


@rejected_by("test_size")
class TestCountsThreads(BrokenPoolSuite):
    config = backends.config(CountsThreads)


class WorksUninitialized(ThreadPool):
    """Lets a worker whose initializer raised run tasks."""

    @override
    def _initialize(self) -> bool:
        try:
            self._config.initialize()
        except Exception:
            logging.getLogger(__name__).exception("an initializer failed")
        return True


@rejected_by("test_an_initializer_that_raises", "test_an_initializer_that_does_not_exist")
class TestWorksUninitialized(BrokenPoolSuite):
    config = backends.config(WorksUninitialized)


class StartsForEver(ThreadPool):
    """Starts a worker again whenever its initializer raises."""

    @override
    def _initialize(self) -> bool:
        pause = threading.Event()
        while self._state is not PoolState.TERMINATED:
            try:
                self._config.initialize()
            except Exception:  # noqa: BLE001 - the fault
                pause.wait(0.05)
            else:
                return True
        return False


@rejected_by("test_an_initializer_that_raises", hangs=True)
class TestStartsForEver(BrokenPoolSuite):
    config = backends.config(StartsForEver)


class DealsContexts(ChangedPool):
    """Gives each call, not each worker, a context."""

    def __init__(self, config: ThreadPoolConfig, *, member: Member) -> None:
        plain = config.model_copy(update={"worker_contexts": None, "size": config.workers})
        super().__init__(plain, member=member)
        self.contexts = config

    @override
    def changed(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return partial(func, *self.contexts.context(next(self.count) % self.size()))


@rejected_by("test_each_worker_has_its_context")
class TestDealsContexts(BrokenPoolSuite):
    config = backends.config(DealsContexts)


class SharesContexts(DealsContexts):
    """Keeps the contexts where all pools do."""

    shared: ClassVar[ThreadPoolConfig]

    def __init__(self, config: ThreadPoolConfig, *, member: Member) -> None:
        super().__init__(config, member=member)
        type(self).shared = config

    @override
    def changed(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return partial(func, *self.shared.context(0))


@rejected_by("test_contexts_of_two_pools_do_not_mix")
class TestSharesContexts(BrokenPoolSuite):
    config = backends.config(SharesContexts)
