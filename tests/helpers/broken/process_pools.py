"""Pools of processes that are broken: in what they do when a worker dies, and in what they copy."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from typing_extensions import override

import pparallel_process
from broken.harness import Backends, rejected_by
from broken.pools import ChangedSink
from pparallel.errors import WorkerLostError
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


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return backends.records


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
        changed = config.model_copy(update=self.changes)
        super().__init__(changed, name=name, streams=streams, **parts)
        self.kept: list[Any] = []

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


class RunsAgain(ChangedPool):
    """Runs what a dead worker held once more, though nobody asked for it."""

    changes: ClassVar[dict[str, Any]] = {"retries": 1}


@rejected_by("test_nothing_starts_twice")
class TestRunsAgain(PoolSuite):
    config = config(RunsAgain)


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


@rejected_by("test_a_dead_worker_is_replaced")
class TestBreaksWithItsWorker(PoolSuite):
    config = config(BreaksWithItsWorker)


class LosesTheExitCode(ChangedPool):
    """Knows that a worker died, and not how."""

    class Told(ToldSink):
        @override
        def lost(self, index: int, error: WorkerLostError) -> None:
            self.sink.failed(index, WorkerLostError(error.pid, None))


@rejected_by("test_a_worker_that_dies")
class TestLosesTheExitCode(PoolSuite):
    config = config(LosesTheExitCode)


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
