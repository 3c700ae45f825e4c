"""What a pool tells a sink that observes its tasks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from pparallel.errors import WorkerLostError
from pparallel.interfaces.pool import Batch, Pool, Sink
from pparallel.testing.patience import PATIENCE
from pparallel.testing.pool.base import Make, PoolTests
from pparallel.testing.pool.tasks import die_at_first, die_on_some, double, refuse_odd
from pparallel.testing.suite import requires


class Recorder(Sink):
    """Writes down what it is told."""

    piecewise = True
    observed = True

    def __init__(self, count: int) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._left = count
        self._lock = threading.Lock()
        self._all = threading.Event()

    @property
    @override
    def cancelled(self) -> bool:
        return False

    @override
    def begin(self) -> bool:
        self._tell("begin", -1)
        return True

    @override
    def started(self, index: int, worker: str) -> None:
        self._tell("started", index, worker)

    @override
    def retried(self, index: int, error: BaseException) -> None:
        self._tell("retried", index, error)

    @override
    def done(self, first: int, values: Sequence[Any]) -> None:
        for index, value in enumerate(values, first):
            self._tell("done", index, value)
        self._end(len(values))

    @override
    def failed(self, index: int, error: BaseException) -> None:
        self._tell("failed", index, error)
        self._end(1)

    @override
    def abort(self, error: BaseException) -> None:
        self._tell("aborted", -1, error)
        self._end(self._left)

    def wait(self) -> None:
        """Wait until every task has ended."""
        assert self._all.wait(PATIENCE), f"not all tasks ended: {self.told}"

    def of(self, index: int) -> list[str]:
        """Return what was told of one task."""
        return [kind for kind, at, *_ in self.told if at == index]

    def what(self, kind: str) -> list[tuple[Any, ...]]:
        """Return what was told of one kind."""
        return [tuple(rest) for each, *rest in self.told if each == kind]

    def _tell(self, *what: Any) -> None:
        with self._lock:
            self.told.append(what)

    def _end(self, count: int) -> None:
        with self._lock:
            self._left -= count
            if self._left <= 0:
                self._all.set()


class ObservationTests(PoolTests):
    """Tests of ``carry`` with a sink that observes."""

    def test_an_observed_task_starts_and_ends_once(self, make: Make) -> None:
        with make(size=2) as pool:
            recorder = _observed(pool, refuse_odd, 60)
        assert recorder.told[0] == ("begin", -1)
        assert len(recorder.what("begin")) == 1
        for index in range(60):
            assert recorder.of(index) == ["started", "failed" if index % 2 else "done"]
        workers = {worker for _, worker in recorder.what("started")}
        assert 1 <= len(workers) <= 2
        assert all(isinstance(each, str) and each for each in workers)

    @requires("isolated")
    def test_an_observed_task_that_dies(self, make: Make, notes: Path) -> None:
        with make(size=1) as pool:
            recorder = _observed(pool, partial(die_on_some, notes, (3,)), 20)
        assert recorder.of(3) == ["started", "failed"]
        ((_, error),) = [each for each in recorder.what("failed") if each[0] == 3]
        assert isinstance(error, WorkerLostError)
        for index in range(4, 20):
            assert recorder.of(index) == ["started", "done"]

    @requires("isolated")
    def test_an_observed_task_that_is_retried(self, make: Make, notes: Path) -> None:
        with make(size=1, retries=2) as pool:
            recorder = _observed(pool, partial(die_at_first, notes, 1), 3)
        for index in range(3):
            found = recorder.of(index)
            assert found[0] == "started"
            assert found[-1] == "done"
            assert found.count("started") - 1 == found.count("retried") >= 1
            assert found[1:3] == ["retried", "started"]
        assert {type(error) for _, error in recorder.what("retried")} == {WorkerLostError}

    def test_an_observed_pool_goes_on(self, pool: Pool) -> None:
        done = _observed(pool, double, 10).what("done")
        assert sorted(done) == [(each, 2 * each) for each in range(10)]
        assert pool.map(double, range(10)) == list(range(0, 20, 2))

    @pytest.mark.parametrize("observed", [False, True])
    def test_a_batch_that_wants_pieces(self, pool: Pool, observed: bool) -> None:
        recorder = Recorder(20)
        recorder.observed = observed
        pool.carry(Batch(refuse_odd, range(20)), recorder)
        recorder.wait()
        assert sorted(recorder.what("done")) == [(each, each) for each in range(0, 20, 2)]
        assert sorted(index for index, _ in recorder.what("failed")) == list(range(1, 20, 2))
        assert observed or not recorder.what("started")


def _observed(pool: Pool, task: Any, count: int) -> Recorder:
    recorder = Recorder(count)
    pool.carry(Batch(task, range(count)), recorder)
    recorder.wait()
    return recorder
