"""Clocks, tickers and time-outs: threads that cannot be started, signal handlers and finalizers."""

from __future__ import annotations

import threading

import pytest
from exhausted import no_threads

from pparallel.errors import CallTimeoutError, ResourceExhaustedError
from pparallel.runtime.clock import Clock
from pparallel.runtime.pending import Pending
from pparallel.runtime.ticker import Ticker
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


def test_a_ticker_without_a_thread_starts_one_later() -> None:
    ticker, calls = Ticker("test-ticker", 0.001), list[float]()
    with no_threads("test-ticker"), pytest.raises(ResourceExhaustedError):
        ticker.add(print)
    ticker.add(calls.append)
    until(lambda: len(calls) > 2, "it was not called")
    ticker.close()


def test_time_outs_that_had_no_thread_are_kept_as_soon_as_there_is_one() -> None:
    pending: Pending[None] = Pending("the test")
    with no_threads("pparallel-clock"), pytest.raises(ResourceExhaustedError):
        pending.add("a", 0.01)
    assert len(pending) == 0
    with pytest.raises(CallTimeoutError):
        pending.add("a", 0.01).result(PATIENCE)
    pending.close()


@pytest.mark.parametrize("failure", [LookupError, SystemExit, KeyboardInterrupt])
def test_what_a_function_raises_ends_neither_clock_nor_ticker(
    failure: type[BaseException],
) -> None:
    def fail(*_: float) -> None:
        raise failure

    clock, called = Clock("test-clock"), threading.Event()
    clock.after(0, fail)
    clock.after(0.01, called.set)
    assert called.wait(PATIENCE)
    clock.close()
    ticker, calls = Ticker("test-ticker", 0.001), list[float]()
    ticker.add(fail)
    ticker.add(calls.append)
    until(lambda: len(calls) > 2, "it was not called again")
    ticker.close()
