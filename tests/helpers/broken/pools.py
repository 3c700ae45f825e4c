"""Pools of threads that are broken, each in one way."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

from typing_extensions import override

import pparallel_local
from broken.harness import Backends, rejected_by
from pparallel.interfaces.pool import Batch, Sink
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


class ClosingCancels(ThreadPool):
    """Drops what was taken when it is closed."""

    @override
    def close(self) -> None:
        super().close()
        self.terminate()


@rejected_by("test_close_stops_intake_only", "test_the_end_of_with_waits")
class TestClosingCancels(BrokenPoolSuite):
    config = backends.config(ClosingCancels)


class LeaksADescriptor(ThreadPool):
    """Never closes what wakes it."""

    @override
    def open(self) -> None:
        super().open()
        self.wakeup = os.eventfd(0)


@rejected_by("test_nothing_is_left_behind", "test_results_are_in_order")
class TestLeaksADescriptor(BrokenPoolSuite):
    config = backends.config(LeaksADescriptor)
