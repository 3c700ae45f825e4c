"""A pool's batches while they wait for its threads, and the threads' turns at a worker."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.pool import Batch, Pool, PoolState, Sink
from pparallel.runtime.threads import Backlog, Slot
from pparallel.testing.patience import PATIENCE, until


class ScriptedPool(Pool):
    """Has threads serve as a test says."""

    def __init__(self, workers: int, initialize: Callable[[], object] = lambda: None) -> None:
        self.workers, self.initialize = workers, initialize
        self.backlog = Backlog(self)
        self.threads: list[threading.Thread] = []
        self.slots = [Slot(number, ()) for number in range(workers)]

    def start(self, slot: Slot) -> None:
        """Start a thread for *slot*."""
        serve = threading.Thread(target=self.backlog.serve, args=(slot, self.initialize))
        self.threads.append(serve)
        serve.start()

    @override
    def size(self) -> int:
        return self.workers

    @override
    def open(self) -> None:
        self.backlog.open()

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        self.backlog.put(batch, sink)

    @override
    def close(self) -> None:
        self.backlog.close()

    @override
    def join(self) -> None:
        self.backlog.join(from_task=False)
        for each in self.threads:
            each.join(PATIENCE)
            assert not each.is_alive()

    @override
    def terminate(self) -> None:
        self.backlog.terminate()


class Told(Sink):
    """Writes down what it is told, and begins if it may."""

    piecewise = True

    def __init__(self, *, begins: bool = True) -> None:
        self.begins = begins
        self.begun = 0
        self.values: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}

    @property
    @override
    def cancelled(self) -> bool:
        return False

    @override
    def begin(self) -> bool:
        self.begun += 1
        return self.begins

    @override
    def done(self, first: int, values: Sequence[Any]) -> None:
        self.values.update(enumerate(values, first))

    @override
    def failed(self, index: int, error: BaseException) -> None:
        self.errors[index] = error

    @override
    def abort(self, error: BaseException) -> None:
        self.errors[-1] = error


def test_what_is_handed_over_first_is_run_first() -> None:
    pool, ran = ScriptedPool(1), list[int]()
    with pool:
        sinks = [Told() for _ in range(3)]
        for number, sink in enumerate(sinks):
            pool.carry(Batch(ran.append, range(3 * number, 3 * number + 3)), sink)
        pool.slots[0].employ(pool.start)
    assert ran == list(range(9))
    assert [sink.begun for sink in sinks] == [1, 1, 1]
    assert [sorted(sink.values) for sink in sinks] == [[0, 1, 2]] * 3


def test_a_batch_that_may_not_begin_is_not_run() -> None:
    pool, ran, sink = ScriptedPool(2), list[int](), Told(begins=False)
    with pool:
        pool.carry(Batch(ran.append, range(3)), sink)
        for slot in pool.slots:
            slot.employ(pool.start)
    assert (ran, sink.begun, sink.values, sink.errors) == ([], 1, {}, {})


def test_an_initializer_that_raises_fails_what_is_there_and_what_comes() -> None:
    tried: list[int] = []

    def refuse() -> None:
        tried.append(1)
        raise LookupError

    pool = ScriptedPool(3, refuse)
    before, after = Told(), Told()
    with pool:
        pool.carry(Batch(abs, range(3)), before)
        for slot in pool.slots:
            slot.employ(pool.start)
        until(lambda: -1 in before.errors, "nobody was told")
        pool.carry(Batch(abs, range(3)), after)
        assert isinstance(after.errors[-1], LookupError)
    assert tried == [1]
    assert (before.begun, after.begun) == (0, 0)


def test_what_is_terminated_fails_and_takes_nothing() -> None:
    pool, sink = ScriptedPool(1), Told()
    pool.open()
    pool.carry(Batch(abs, range(3)), sink)
    pool.terminate()
    assert isinstance(sink.errors[-1], ClosedError)
    pool.join()
    assert pool.backlog.state is PoolState.TERMINATED
    with pytest.raises(ClosedError, match=r"^ScriptedPool\(size=1\) was terminated$"):
        pool.carry(Batch(abs, ()), Told())


def test_an_open_backlog_cannot_be_joined() -> None:
    pool = ScriptedPool(1)
    pool.open()
    with pytest.raises(ValueError, match="close or terminate it before join"):
        pool.backlog.join(from_task=False)
    pool.close()
    with pytest.raises(RuntimeError, match="it would wait for itself"):
        pool.backlog.join(from_task=True)
    pool.join()
    assert pool.backlog.state is PoolState.JOINED


def test_a_slot_that_is_lent_is_taken_back() -> None:
    pool = ScriptedPool(1)
    (slot,) = pool.slots

    def outer(_: int) -> list[int]:
        inner = Told()
        pool.carry(Batch(abs, range(-2, 0)), inner)
        assert not inner.values, "it has the only worker"
        with slot.lent(pool.start):
            until(lambda: len(inner.values) == 2, "nobody works in its place")
        assert slot.busy.locked()
        return [inner.values[0], inner.values[1]]

    sink = Told()
    with pool:
        pool.carry(Batch(outer, range(2)), sink)
        slot.employ(pool.start)
        until(lambda: len(sink.values) + len(sink.errors) == 2, "they did not end")
    assert not sink.errors, sink.errors
    assert sink.values == {0: [2, 1], 1: [2, 1]}
    assert len(pool.threads) > 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_refused() -> None:
    with ScriptedPool(1) as pool:
        pool.start(pool.slots[0])
        assert pool.map(abs, [-1, -2]) == [1, 2]
        pid = os.fork()
        if not pid:
            try:
                pool.backlog.put(Batch(abs, ()), Told())
            except ClosedError as error:
                pool.backlog.terminate()
                pool.backlog.join(from_task=False)
                os._exit("fork" not in str(error))
            finally:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        assert pool.map(abs, [-1, -2]) == [1, 2]
