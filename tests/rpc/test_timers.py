"""Timers: what is called when, on one thread."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterator

import pytest
from exhausted import no_threads
from fake_timers import FakeTimers

from pparallel.errors import ResourceExhaustedError
from pparallel.runtime.timers import Timers
from pparallel.runtime.waits import LONGEST_WAIT, at_most, milliseconds
from pparallel.testing.patience import PATIENCE


@pytest.fixture
def timers() -> Iterator[Timers]:
    made = Timers("test-timers")
    yield made
    made.close()


def test_callbacks_come_in_the_order_of_their_times() -> None:
    timers, calls = FakeTimers(), list[tuple[str, float]]()
    for name, seconds in (("c", 3.0), ("a", 1.0), ("b", 1.0), ("d", 10.0), ("now", 0.0)):
        timers.call_later(seconds, lambda name=name: calls.append((name, timers.now)))  # type: ignore[misc]
    timers.advance(2.0)
    assert calls == [("now", 0.0), ("a", 1.0), ("b", 1.0)]
    timers.advance(2.0)
    assert calls[3:] == [("c", 3.0)]
    assert timers.run_due() == 6.0


def test_what_is_cancelled_is_not_called() -> None:
    timers, calls = FakeTimers(), list[str]()
    first = timers.call_later(1.0, lambda: calls.append("first"))
    second = timers.call_later(2.0, lambda: calls.append("second"))
    timers.call_later(1.5, second.cancel)
    timers.call_later(3.0, lambda: calls.append("third"))
    first.cancel()
    first.cancel()
    timers.advance(5.0)
    assert calls == ["third"]
    second.cancel()
    assert timers.run_due() == math.inf


def test_a_cancelled_timer_keeps_nothing_alive() -> None:
    class Held:
        def call(self) -> None: ...

    timers, held = FakeTimers(), Held()
    timer, gone = timers.call_later(1.0, held.call), weakref.ref(held)
    timer.cancel()
    del held
    assert gone() is None


def test_many_cancelled_timers_take_no_memory() -> None:
    timers, calls = FakeTimers(), list[int]()
    for n in range(5000):
        timer = timers.call_later(1000.0 - n / 10, lambda n=n: calls.append(n))  # type: ignore[misc]
        if n % 1000:
            timer.cancel()
    assert len(timers._heap) < 300
    timers.advance(1000.0)
    assert calls == [4000, 3000, 2000, 1000, 0]


@pytest.mark.parametrize("failure", [LookupError, SystemExit, KeyboardInterrupt])
def test_a_callback_that_raises_is_logged_and_stops_no_other(
    failure: type[BaseException], timers: Timers, caplog: pytest.LogCaptureFixture
) -> None:
    called = threading.Event()

    def fail() -> None:
        raise failure

    timers.call_later(0, fail)
    timers.call_later(0, called.set)
    assert called.wait(PATIENCE)
    assert "A callback that test-timers called has failed" in caplog.text


def test_all_timers_share_one_thread_that_starts_with_the_first(timers: Timers) -> None:
    threads = list[str]()
    called = threading.Event()
    assert "test-timers" not in {each.name for each in threading.enumerate()}
    for _ in range(3):
        timers.call_later(0, lambda: threads.append(threading.current_thread().name))
    timers.call_later(0.001, called.set)
    assert called.wait(PATIENCE)
    assert threads == ["test-timers"] * 3
    assert [each.name for each in threading.enumerate()].count("test-timers") == 1


def test_nothing_is_called_once_they_are_closed(timers: Timers) -> None:
    called, closed = threading.Event(), threading.Event()
    timers.call_later(0.001, called.set)
    assert called.wait(PATIENCE)
    called.clear()
    timers.call_later(0.01, called.set)

    def close() -> None:
        timers.close()
        closed.set()

    timers.call_later(0, close)  # in their own thread
    assert closed.wait(PATIENCE)
    timers.close()
    timers.call_later(0, called.set).cancel()
    timers.call_later(0, called.set)
    assert "test-timers" not in {each.name for each in threading.enumerate()}
    assert not called.is_set()


@pytest.mark.parametrize("starts", [True, False])
def test_timers_without_a_thread_start_one_later_or_close(timers: Timers, starts: bool) -> None:
    called = threading.Event()
    with no_threads("test-timers"), pytest.raises(ResourceExhaustedError):
        timers.call_later(0, called.set)
    assert not called.is_set()
    if starts:
        timers.call_later(0, called.set)
        assert called.wait(PATIENCE)


def test_waits_of_years_are_cut() -> None:
    assert at_most(None) is None
    assert milliseconds(None) is None
    assert at_most(1.5) == 1.5
    assert milliseconds(0.0101) == 11  # not less than asked
    for long in (math.inf, 1e12):
        assert at_most(long) == LONGEST_WAIT
        assert milliseconds(long) == LONGEST_WAIT * 1000 < 2**31
