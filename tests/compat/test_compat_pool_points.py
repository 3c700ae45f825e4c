"""Each part of ``BasePool`` may be overridden, in a subclass of it and of the other pools."""

from __future__ import annotations

import os
import threading
from typing import Any

import compat_pool_tasks as tasks
import pytest
from typing_extensions import override

from pparallel.compat.machin.pool import BasePool, P2PPool, Pool, ThreadPool
from pparallel.errors import ClosedError, WorkerLostError
from pparallel.testing.patience import PATIENCE, until

POINTS = [
    "setup_queues",
    "repopulate_pool",
    "join_workers",
    "terminate_workers",
    "maintain_pool",
    "pool_inqueue_put",
    "pool_outqueue_get",
]


class TestParts:
    """One part is overridden, or all."""

    @pytest.mark.parametrize(
        ("kind", "point"),
        [
            *((ThreadPool, each) for each in POINTS),
            *((BasePool, each) for each in POINTS),
            (Pool, "maintain_pool"),
            (P2PPool, "pool_inqueue_put"),
        ],
    )
    def test_a_part_that_is_overridden_is_used(self, kind: type[BasePool], point: str) -> None:
        made: Any = tasks.overriding(kind, point)(1)
        with made as pool:
            assert pool.map(tasks.square, range(5), 1) == [0, 1, 4, 9, 16]
            assert list(pool.imap(tasks.square, range(5))) == [0, 1, 4, 9, 16]
            with pytest.raises(ZeroDivisionError):
                pool.apply(tasks.invert, (0,))
            if point == "maintain_pool":
                until(lambda: point in pool.calls, "nobody looked after the pool")
        assert pool.calls == {point}

    @pytest.mark.parametrize(
        "kind", [tasks.BraggingPool, tasks.BraggingThreads, tasks.BraggingProcesses]
    )
    def test_a_worker_function_of_ones_own(self, kind: type[BasePool]) -> None:
        with kind(1, tasks.greet, ("hello",)) as pool:
            assert pool.apply(tasks.square, (3,)) == ("done by me", 9)
            assert pool.apply(tasks.greeting) == ("done by me", "hello")
            # It leaves exceptions to whoever calls it: the task has them all the same.
            with pytest.raises(ZeroDivisionError):
                pool.apply_async(tasks.invert, (0,)).get(PATIENCE)
            assert pool.apply_async(tasks.square, (4,)).get(PATIENCE) == ("done by me", 16)

    def test_processes_of_ones_own(self) -> None:
        with tasks.OwnProcesses(1) as pool:
            assert pool.map(tasks.square, range(9)) == [each**2 for each in range(9)]
            with pytest.raises(ZeroDivisionError):
                pool.apply(tasks.invert, (0,))
            with pytest.raises(WorkerLostError):
                pool.apply_async(os._exit, (3,)).get(PATIENCE)
            assert pool.apply(tasks.square, (3,)) == 9


def test_threads_and_queues_of_ones_own() -> None:
    with tasks.OwnQueues(2) as pool:
        assert pool.map(tasks.square, range(9)) == [each**2 for each in range(9)]
        assert pool.apply(tasks.worker)[0] == os.getpid()
    closed = tasks.OwnQueues(2)
    call = closed.apply_async(tasks.square, (3,))
    closed.close()
    closed.join()
    assert call.get() == 9


class Broken(BasePool):
    """A pool whose queue of answers cannot be used."""

    @override
    def pool_outqueue_get(self, timeout: float) -> Any:
        raise EOFError("no queue any more")


def test_a_queue_that_cannot_be_used_ends_the_pool() -> None:
    pool = Broken(1)
    until(lambda: not pool._road._attendant.is_alive(), "the pool goes on")  # type: ignore[attr-defined]
    with pytest.raises((EOFError, ClosedError)):
        pool.apply(tasks.square, (2,))
    pool.join()


def test_a_pool_that_ends_before_it_is_open_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start

    def start_and_wait(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "pool-attendant":
            thread.join(PATIENCE)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_and_wait)
        pool = Broken(1)
    until(lambda: "pparallel-collected" not in names_of_threads(), "the pool is watched on")
    with pytest.raises(ClosedError):
        pool.apply(tasks.square, (2,))


def names_of_threads() -> set[str]:
    return {each.name for each in threading.enumerate()}


class Unable(BasePool):
    """A pool that cannot start workers."""

    @override
    def repopulate_pool(self) -> None:
        raise OSError("no more processes")


def test_a_pool_that_cannot_start_leaves_nothing() -> None:
    with pytest.raises(OSError, match="no more processes"):
        Unable(1)
