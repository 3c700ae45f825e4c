"""Queues that are closed, or shut down, and who waits then."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

import pytest
from queue_children import blocks, child, running
from queue_children import q as q
from typing_extensions import override

from pparallel.errors import ClosedError, TaskTimeoutError
from pparallel.patterns.queues import SimpleQueue
from pparallel.runtime import stopping
from pparallel.runtime.queues.ends import Ends
from pparallel.testing.patience import PATIENCE, until


def waits_noted(monkeypatch: pytest.MonkeyPatch) -> list[Ends]:
    """Return a list to which each wait that begins adds an entry."""
    waiting: list[Ends] = []
    wait = Ends.wait

    def noted(ends: Ends, *args: Any) -> None:
        waiting.append(ends)
        wait(ends, *args)

    monkeypatch.setattr(Ends, "wait", noted)
    return waiting


def filled() -> SimpleQueue:
    """Return a queue that has no room."""
    full = SimpleQueue(capacity=32)
    with pytest.raises(TaskTimeoutError):  # noqa: PT012
        while True:
            full.put(1, timeout=0)
    return full


def test_a_closed_queue_refuses_everything(q: SimpleQueue) -> None:
    q.put(1)
    q.close()
    q.close()
    for call in (q.get, q.empty, q.shutdown, lambda: q.put(1), lambda: pickle.dumps(q)):
        with pytest.raises(ClosedError, match="the queue is closed"):
            call()


def test_close_wakes_this_processs_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    q, full = SimpleQueue(capacity=32), filled()
    failures: list[BaseException] = []

    def call(operation: Callable[[], object]) -> None:
        try:
            operation()
        except ClosedError as error:
            failures.append(error)

    calls: list[Callable[[], object]] = [q.get, lambda: q.get(PATIENCE), lambda: full.put(1)]
    waiting = waits_noted(monkeypatch)
    with running(*[lambda each=each: call(each) for each in calls]):
        until(lambda: len(waiting) == len(calls), "not all wait")
        q.close()
        full.close()
    assert len(failures) == 3


def test_closing_here_leaves_others_their_queue(q: SimpleQueue) -> None:
    other = pickle.loads(pickle.dumps(q))
    q.put("left")
    q.close()
    assert other.get(0) == "left"
    other.put("more")
    assert other.get(0) == "more"
    other.close()


def test_shutdown_is_for_all_and_what_was_put_still_arrives(q: SimpleQueue) -> None:
    other = pickle.loads(pickle.dumps(q))
    q.put("first")
    q.put(b"x" * 50_000)
    other.shutdown()
    other.shutdown()
    with pytest.raises(ClosedError, match="the queue was shut down"):
        q.put("late")
    with pytest.raises(ClosedError, match="the queue was shut down"):
        other.put(b"x" * 50_000)
    assert other.get() == "first"
    assert q.get() == b"x" * 50_000
    for each in (q, other):
        with pytest.raises(ClosedError, match="the queue was shut down"):
            each.get()
    assert blocks(q) == 0
    other.close()


def test_shutdown_wakes_the_waiters_of_all_processes(q: SimpleQueue) -> None:
    code = """
print("ready", flush=True)
try:
    q.get()
except ValueError as error:
    print(error, flush=True)
"""
    with child(code, q) as one, child(code, q) as two:
        assert [one.line(), two.line()] == ["ready"] * 2
        q.shutdown()
        assert [one.line(), two.line()] == ["the queue was shut down"] * 2


def test_shutdown_wakes_a_put_that_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with filled() as full:
        failures: list[Exception] = []

        def put() -> None:
            try:
                full.put(1, timeout=PATIENCE)
            except (ClosedError, TaskTimeoutError) as error:
                failures.append(error)

        waiting = waits_noted(monkeypatch)
        with running(put):
            until(lambda: bool(waiting), "it does not wait")
            full.shutdown()
        (failure,) = failures
        assert isinstance(failure, ClosedError)


def test_a_rank_that_is_told_to_stop_wakes(q: SimpleQueue) -> None:
    signal_to_stop = stopping.StopSignal()
    failures: list[ClosedError] = []

    def wait() -> None:
        with stopping.running_under(signal_to_stop):
            try:
                q.get()
            except ClosedError as error:
                failures.append(error)

    with running(wait):
        signal_to_stop.set()
    assert [each.consequence for each in failures] == [True]
    q.put("usable")
    assert q.get() == "usable"


def test_a_rank_that_is_told_to_stop_when_it_waits_no_longer(q: SimpleQueue) -> None:
    """The signal's thread may be late, and what it would write to be somebody else's by then."""
    late: list[stopping.Callback] = []

    class Late(stopping.StopSignal):
        @override
        def subscribe(self, callback: stopping.Callback) -> Callable[[], None]:
            late.append(callback)
            return lambda: None

    signal_to_stop = Late()
    with stopping.running_under(signal_to_stop), pytest.raises(TaskTimeoutError):
        q.get(timeout=0.01)
    others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3)]
    try:
        late[0](None)
        for each in others:
            with pytest.raises(BlockingIOError):
                os.eventfd_read(each)
    finally:
        for each in others:
            os.close(each)


def test_ctrl_c_wakes(q: SimpleQueue) -> None:
    code = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print("ready", flush=True)
    q.get()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    with child(code, q) as waiting:
        assert waiting.line() == "ready"
        waiting.process.send_signal(signal.SIGINT)
        assert waiting.line() == "interrupted"
