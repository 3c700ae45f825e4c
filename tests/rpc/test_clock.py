"""Clocks and time-outs: threads that cannot be started, signal handlers and finalizers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from exhausted import no_threads

from pparallel.errors import CallTimeoutError, ResourceExhaustedError
from pparallel.runtime.clock import Clock
from pparallel.runtime.pending import Pending
from pparallel.testing.patience import PATIENCE, until


def test_a_clock_without_a_thread_starts_one_later() -> None:
    clock, called = Clock("test-clock"), threading.Event()
    with no_threads("test-clock"), pytest.raises(ResourceExhaustedError):
        clock.after(0, called.set)
    assert not called.is_set()
    clock.after(0, called.set)
    assert called.wait(PATIENCE)
    clock.close()


def test_a_clock_that_never_started_closes() -> None:
    clock = Clock("test-clock")
    with no_threads("test-clock"), pytest.raises(ResourceExhaustedError):
        clock.after(0, print)
    clock.close()


def test_time_outs_that_had_no_thread_are_kept_as_soon_as_there_is_one() -> None:
    pending: Pending[None] = Pending("the test")
    with no_threads("pparallel-clock"), pytest.raises(ResourceExhaustedError):
        pending.add("a", 0.01)
    assert len(pending) == 0
    with pytest.raises(CallTimeoutError):
        pending.add("a", 0.01).result(PATIENCE)
    pending.close()


@pytest.mark.parametrize("failure", [LookupError, SystemExit, KeyboardInterrupt])
def test_what_a_function_raises_ends_no_clock(failure: type[BaseException]) -> None:
    def fail(*_: float) -> None:
        raise failure

    clock, called = Clock("test-clock"), threading.Event()
    clock.after(0, fail)
    clock.after(0.01, called.set)
    assert called.wait(PATIENCE)
    clock.close()


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock("the test's clock")
    yield clock
    clock.close()


def test_a_clock_calls_in_the_order_of_time(clock: Clock) -> None:
    called: list[float] = []
    for delay in (0.06, 0.02, 0.04, 0.0):
        clock.after(delay, lambda delay=delay: called.append(delay))  # type: ignore[misc]
    until(lambda: len(called) == 4, "not all were called")
    assert called == [0.0, 0.02, 0.04, 0.06]


def test_a_call_that_raises_stops_no_clock(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Event()
    clock.after(0, lambda: [][0])
    clock.after(0.001, called.set)
    assert called.wait(10)
    assert "A function that the test's clock called has failed" in caplog.text


def test_a_closed_clock_calls_nothing(clock: Clock) -> None:
    called = threading.Event()
    clock.after(0.02, called.set)
    clock.after(0, clock.close)  # in its own thread
    until(lambda: clock._closed, "it was not closed")
    clock.after(0, called.set)
    assert not called.wait(0.05)
