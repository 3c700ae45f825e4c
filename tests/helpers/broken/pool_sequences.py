"""Pools that work call by call, and fail after some sequence of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from typing_extensions import override

import pparallel_local
from broken.harness import Backends, rejected_by
from broken.pools import BrokenPoolSuite, ChangedPool, ChangedSink
from pparallel.errors import ClosedError
from pparallel.interfaces.pool import Batch, PoolResult, Sink
from pparallel.plugin import Backend, hookimpl
from pparallel.runtime.member import Member
from pparallel_local import ThreadPoolConfig
from pparallel_local.thread_pool import ThreadPool

backends = Backends(ThreadPoolConfig, pparallel_local)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return backends.records


class ManySequences(BrokenPoolSuite):
    """Tries more: what one version of Hypothesis finds soon, another may find late."""

    sequences: ClassVar[int] = 200
    limit: ClassVar[float] = 200.0


class Remembering(ChangedPool):
    """Counts what happened; a fault comes once something has."""

    def __init__(self, config: ThreadPoolConfig, *, member: Member) -> None:
        super().__init__(config, member=member)
        self.failures = 0
        self.calls = 0

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        self.calls += bool(batch.items)
        super().carry(batch, _Told(self, batch, sink) if batch.items else sink)


class _Told(ChangedSink):
    def __init__(self, pool: Remembering, batch: Batch, sink: Sink) -> None:
        super().__init__(batch, sink)
        self.pool = pool

    @override
    def failed(self, index: int, error: BaseException) -> None:
        self.pool.failures += 1
        self.sink.failed(index, error)


# -- tasks --------------------------------------------------------------------------------------


class RunsAgainAfterAFailure(Remembering):
    """Runs the first task after one that failed twice, as if that had failed."""

    @override
    def changed(self, func: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.failures:
                self.failures = 0
                func(*args, **kwargs)
            return func(*args, **kwargs)

        return call


@rejected_by("test_any_sequence_of_calls")
class TestRunsAgainAfterAFailure(ManySequences):
    config = backends.config(RunsAgainAfterAFailure)


class SkipsOneAfterAFailure(Remembering):
    """Takes the task after two that failed for one that fails too, and does not run it."""

    @override
    def changed(self, func: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.failures == 2:
                self.failures = 0
                return None
            return func(*args, **kwargs)

        return call


@rejected_by("test_any_sequence_of_calls")
class TestSkipsOneAfterAFailure(ManySequences):
    config = backends.config(SkipsOneAfterAFailure)


class SwapsAfterAFailure(ChangedPool):
    """Reports the two results after a failure in a stream in each other's place."""

    class Told(ChangedSink):
        failed_before = False

        @override
        def done(self, first: int, values: Sequence[Any]) -> None:
            if SwapsAfterAFailure.Told.failed_before and len(values) > 1:
                values = [values[1], values[0], *values[2:]]
                SwapsAfterAFailure.Told.failed_before = False
            self.sink.done(first, values)

        @override
        def failed(self, index: int, error: BaseException) -> None:
            SwapsAfterAFailure.Told.failed_before = True
            self.sink.failed(index, error)


@rejected_by("test_any_sequence_of_calls")
class TestSwapsAfterAFailure(ManySequences):
    config = backends.config(SwapsAfterAFailure)


# -- cancelling -----------------------------------------------------------------------------------


class RunsTheThirdOfTheCancelled(ChangedPool):
    """Lets every third call that was cancelled run."""

    class Told(ChangedSink):
        cancelled_calls = 0

        @override
        def begin(self) -> bool:
            begun = self.sink.begin()
            RunsTheThirdOfTheCancelled.Told.cancelled_calls += not begun
            return begun or RunsTheThirdOfTheCancelled.Told.cancelled_calls % 3 == 0


@rejected_by("test_any_sequence_of_calls")
class TestRunsTheThirdOfTheCancelled(ManySequences):
    config = backends.config(RunsTheThirdOfTheCancelled)


class Handing(ThreadPool):
    """Gives results of another class, whose ``cancel`` a fault changes."""

    Result: ClassVar[type[PoolResult[Any]]] = PoolResult

    @override
    def _called(self, *args: Any) -> Any:
        handle = super()._called(*args)
        handle.__class__ = self.Result
        return handle


class ForgetsWhoAskedWhenCancelled(Handing):
    """Does not call the done-callbacks of a call that is cancelled."""

    class Result(PoolResult[Any]):
        @override
        def cancel(self) -> bool:
            told, self._done_callbacks = self._done_callbacks, []
            cancelled = super().cancel()
            self._done_callbacks += told
            return cancelled


@rejected_by("test_any_sequence_of_calls")
class TestForgetsWhoAskedWhenCancelled(ManySequences):
    config = backends.config(ForgetsWhoAskedWhenCancelled)


class SaysThatItCancelled(Handing):
    """Says of a call that runs that it is cancelled."""

    class Result(PoolResult[Any]):
        @override
        def cancel(self) -> bool:
            return super().cancel() or not self.done()


@rejected_by("test_any_sequence_of_calls")
class TestSaysThatItCancelled(ManySequences):
    config = backends.config(SaysThatItCancelled)


class CancelsNothingBehindAMap(Handing):
    """Cannot cancel a call that waits, once a map was handed over."""

    mapped = False

    class Result(PoolResult[Any]):
        @override
        def cancel(self) -> bool:
            return self.cancelled() or (not CancelsNothingBehindAMap.mapped and super().cancel())

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        CancelsNothingBehindAMap.mapped |= len(batch.items) > 1
        super().carry(batch, sink)


@rejected_by("test_any_sequence_of_calls")
class TestCancelsNothingBehindAMap(ManySequences):
    config = backends.config(CancelsNothingBehindAMap)


# -- callbacks ----------------------------------------------------------------------------------


class CallsBackBothWays(ThreadPool):
    """Calls the callback of a map that has failed, too, with nothing."""

    @override
    def starmap_async(self, *args: Any) -> PoolResult[list[Any]]:
        func, items, chunksize, tell, fail = args

        def failed(error: BaseException) -> None:
            fail(error)
            tell([])

        return super().starmap_async(func, items, chunksize, tell, failed)


@rejected_by("test_any_sequence_of_calls")
class TestCallsBackBothWays(ManySequences):
    config = backends.config(CallsBackBothWays)


# -- the end ------------------------------------------------------------------------------------


class TakesNothingAfterClose(ThreadPool):
    """Takes a map of nothing after it was closed."""

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        try:
            super().carry(batch, sink)
        except ClosedError:
            if batch.items or not batch.awaited:
                raise


@rejected_by("test_any_sequence_of_calls")
class TestTakesNothingAfterClose(ManySequences):
    config = backends.config(TakesNothingAfterClose)


class ClosingEndsStreams(ThreadPool):
    """Gives a stream no more items once it is closed."""

    closed = False

    @override
    def close(self) -> None:
        super().close()
        self.closed = True

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        if self.closed and batch.continues:
            raise ClosedError(repr(self))
        super().carry(batch, sink)

    @override
    def lookahead(self) -> int:
        return 2


@rejected_by("test_any_sequence_of_calls")
class TestClosingEndsStreams(ManySequences):
    config = backends.config(ClosingEndsStreams)
