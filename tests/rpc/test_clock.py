"""Clocks, tickers and time-outs: threads that cannot be started, signal handlers and finalizers."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from exhausted import no_threads

from pparallel.errors import CallTimeoutError, ResourceExhaustedError
from pparallel.runtime.clock import Clock
from pparallel.runtime.pending import Pending
from pparallel.runtime.ticker import Ticker
from pparallel.testing.patience import PATIENCE, until


@contextmanager
def interrupted(action: Callable[[], object]) -> Iterator[None]:
    """Run *action* in the main thread, by a signal's handler, every 0.5 ms."""
    before = signal.signal(signal.SIGALRM, lambda *_: action())
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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


@contextmanager
def no_memory_once(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have what is next put into *clock* find no memory; wait for that."""
    put, failed = clock.put, threading.Event()

    def fail(delay: float, what: Callable[[], None]) -> None:
        if not failed.is_set():
            failed.set()
            raise MemoryError
        put(delay, what)

    monkeypatch.setattr(clock, "put", fail)
    yield
    assert failed.wait(PATIENCE)


def test_a_ticker_that_had_no_memory_for_a_round_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ticker, calls = Ticker("test-ticker", 0.001), list[float]()
    ticker.add(calls.append)
    with no_memory_once(ticker.clock, monkeypatch):
        pass
    calls.clear()
    until(lambda: len(calls) > 2, "it is called no more")
    ticker.close()


def test_time_outs_are_kept_where_there_was_no_memory_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pending: Pending[None] = Pending("the test")
    futures = [pending.add("a", seconds) for seconds in (0.05, 0.1)]
    with no_memory_once(pending._clock, monkeypatch):
        for each in futures:
            with pytest.raises(CallTimeoutError):
                each.result(PATIENCE)
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


def test_signal_handlers_may_use_clocks_at_any_moment() -> None:
    clock, ticker = Clock("test-clock"), Ticker("test-ticker", 0.001)
    pending: Pending[None] = Pending("the test")
    called: list[float] = []

    def tick(now: float) -> None:
        called.append(now)

    def use() -> None:
        clock.after(0, lambda: tick(0.0))
        ticker.add(tick)
        ticker.remove(tick)
        pending.add("a", 20 - time.monotonic() % 10).set_result(None)

    ended = time.monotonic() + 0.3
    with interrupted(use):
        while time.monotonic() < ended:
            use()
    until(lambda: len(called) > 10, "nothing was called")
    with pytest.raises(CallTimeoutError):
        pending.add("a", 0.01).result(PATIENCE)
    for each in (clock, ticker, pending):
        each.close()
