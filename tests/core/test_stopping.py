from __future__ import annotations

import logging
import threading

import pytest

from pparallel.runtime import stopping
from pparallel.runtime.stopping import StopSignal


def test_the_first_call_counts() -> None:
    assert not StopSignal().is_set()
    assert StopSignal().reason is None
    signal = StopSignal()
    first = LookupError("first")
    signal.set(first)
    signal.set(LookupError("second"))
    assert signal.is_set()
    assert signal.reason is first
    assert signal.wait(0)


def test_callbacks_run_once_each_with_the_reason() -> None:
    signal, why = StopSignal(), LookupError()
    seen: list[tuple[str, BaseException | None]] = []
    signal.subscribe(lambda reason: seen.append(("a", reason)))
    signal.subscribe(lambda reason: seen.append(("b", reason)))
    assert seen == []
    signal.set(why)
    signal.set()
    assert seen == [("a", why), ("b", why)]


def test_a_callback_taken_back_is_not_called() -> None:
    signal = StopSignal()
    seen: list[object] = []
    forget = signal.subscribe(seen.append)
    signal.subscribe(lambda _: seen.append("kept"))
    forget()
    forget()
    signal.set()
    forget()
    assert seen == ["kept"]


def test_a_callback_may_take_others_back() -> None:
    signal, called = StopSignal(), list[str]()
    forget = [signal.subscribe(lambda _: called.append("first"))]
    signal.subscribe(lambda _: forget.pop()())
    signal.subscribe(lambda _: called.append("last"))
    signal.set()
    assert called == ["first", "last"]


def test_a_late_subscriber_is_called_at_once() -> None:
    signal = StopSignal()
    signal.set()
    seen: list[object] = []
    forget = signal.subscribe(seen.append)
    assert seen == [None]
    forget()


def test_a_callback_may_subscribe_and_read() -> None:
    signal = StopSignal()
    seen: list[object] = []
    signal.subscribe(lambda _: seen.append(signal.is_set()))
    signal.subscribe(lambda _: signal.subscribe(seen.append))
    signal.set()
    assert seen == [True, None]


def test_a_callback_that_raises_does_not_keep_others_from_waking(
    caplog: pytest.LogCaptureFixture,
) -> None:
    signal = StopSignal()
    seen: list[object] = []

    def fail(_: object) -> None:
        message = "cannot wake"
        raise LookupError(message)

    signal.subscribe(fail)
    signal.subscribe(seen.append)
    with caplog.at_level(logging.ERROR):
        signal.set()
    assert seen == [None]
    assert "cannot wake" in caplog.text


def test_waiting_threads_wake() -> None:
    signal = StopSignal()
    assert signal.wait(0) is False
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(signal.wait(20))) for _ in range(4)]
    for each in threads:
        each.start()
    signal.set()
    for each in threads:
        each.join(20)
    assert results == [True] * 4


def test_the_current_signal_is_that_of_the_innermost_block() -> None:
    outer, inner = StopSignal(), StopSignal()
    assert stopping.current() is None
    with stopping.running_under(outer) as entered:
        assert entered is outer
        assert stopping.current() is outer
        with stopping.running_under(inner):
            assert stopping.current() is inner
        assert stopping.current() is outer
    assert stopping.current() is None


def test_other_threads_have_none() -> None:
    found: list[StopSignal | None] = []
    with stopping.running_under(StopSignal()):
        thread = threading.Thread(target=lambda: found.append(stopping.current()))
        thread.start()
        thread.join(20)
    assert found == [None]
