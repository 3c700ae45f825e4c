"""The order of called functions, how many run at once, and those that wait for others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from fake_timers import FakeTimers

from pparallel.errors import ClosedError
from pparallel.runtime.rpc.executor import LONG, Executor

Job = Callable[[], object]


class Threads:
    """An executor whose threads run one after another, when a test says so."""

    def __init__(self, size: int = 2, **options: Any) -> None:
        self.timers = FakeTimers()
        self.started: deque[Callable[[], None]] = deque()
        self.ran: list[object] = []
        self.dropped: list[object] = []
        self.executor = Executor(
            size,
            "test",
            self.timers,
            self.run,
            lambda job, error: self.dropped.append((job, type(error))),
            start=lambda target, name: self.started.append(target),
            clock=lambda: self.timers.now,
            idle=0.0,
            **options,
        )

    def run(self, job: object) -> None:
        self.ran.append(job)
        if callable(job):
            self.executor.starts()
            job()

    def work(self) -> None:
        """Run the threads that were started, until they have nothing more to do."""
        while self.started:
            self.started.popleft()()

    def within(self, job: Job) -> None:
        """Do what another thread does while one runs a job."""
        thread = threading.Thread(target=job)
        thread.start()
        thread.join()


def test_nobody_takes_over_before_the_function_of_a_job_is_called() -> None:
    def read(job: object) -> None:
        it.timers.advance(2 * LONG)
        assert not it.started
        it.ran.append(job)
        it.executor.starts()

    it = Threads()
    it.executor._run = read
    it.executor.submit("a", [1, 2, 3])
    it.work()
    assert it.ran == [1, 2, 3]


def test_a_job_whose_arguments_call_lets_nobody_behind_it_pass() -> None:
    def read(job: object) -> None:
        with it.executor.blocked():
            it.within(it.work)
        it.ran.append(job)

    it = Threads()
    it.executor._run = read
    it.executor.submit("a", [1, 2])
    it.executor.submit("b", [3])
    it.work()
    assert it.ran == [3, 1, 2]


def test_a_direct_call_waits_for_a_slot_until_its_deadline() -> None:
    it = Threads(size=1)
    assert it.executor.enter(None)
    found: list[bool] = []
    it.within(lambda: found.append(it.executor.enter(it.timers.now - 1)))
    assert found == [False]
    it.executor.submit("a", [1])
    assert not it.started
    it.executor.leave()
    assert len(it.started) == 1
    it.work()
    assert it.ran == [1]
    assert it.executor._running == 0


def test_what_is_over_is_taken_out_of_a_long_queue() -> None:
    over: set[object] = set()
    it = Threads(size=1, over=lambda job: TimeoutError() if job in over else None)

    def hold() -> None:
        for n in range(1000):
            over.update(range(n - 2))
            it.executor.submit("a", [n])
        assert len(it.dropped) > 800

    it.executor.submit("a", [hold])
    it.work()
    assert len(it.ran) + len(it.dropped) == 1001


def test_a_job_that_raises_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    it = Threads()
    it.executor.submit("a", [lambda: [][0], 2])
    it.work()
    assert it.ran[-1] == 2
    assert "A handler of test failed" in caplog.text


def test_after_the_end_nothing_is_taken_and_nothing_waits() -> None:
    it = Threads(size=1)
    it.executor.submit("a", [1])
    assert not it.executor.enter(it.timers.now)
    it.executor.close()
    with pytest.raises(ClosedError):
        it.executor.submit("a", [2])
    with pytest.raises(ClosedError):
        it.executor.enter(None)
    it.work()
    assert it.ran == []


def test_after_the_end_the_rest_may_be_run() -> None:
    it = Threads()
    it.executor.submit("a", [1])
    it.executor.close(runs_rest=True)
    it.executor.submit("a", [2])
    it.work()
    assert it.ran == [1, 2]
