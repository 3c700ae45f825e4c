"""Threads that receive, one at a time, and run what is asked."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pparallel.runtime import dedicated
from pparallel.runtime.dedicated import ALONE, ELSEWHERE, LEADING, RECEIVING
from pparallel.runtime.leading import Leaders, Patience
from pparallel.testing.patience import PATIENCE, until

Act = Callable[[], None]

# -- who takes long ---------------------------------------------------------------------------


@pytest.fixture
def lost() -> list[threading.Thread]:
    return []


@pytest.fixture
def patience(lost: list[threading.Thread]) -> Iterator[Patience]:
    def take(who: threading.Thread) -> bool:
        lost.append(who)
        return True

    made = Patience(0.002, take)
    yield made
    made.close()


@pytest.mark.parametrize("how", ["blocks", "computes", "polls"])
def test_what_takes_long_is_noticed(
    patience: Patience, lost: list[threading.Thread], how: str
) -> None:
    me = threading.current_thread()
    for n in range(3):
        patience.begin(me)
        if how == "computes":
            end = time.thread_time() + PATIENCE
            while len(lost) == n and time.thread_time() < end:
                pass
        else:
            end = time.monotonic() + PATIENCE
            while len(lost) == n and time.monotonic() < end:
                threading.Event().wait(0.05 if how == "blocks" else 0.002)
        patience.end(me)
        assert lost == [me] * (n + 1)


def test_it_is_told_of_until_that_is_taken() -> None:
    told: list[float] = []

    def take(who: threading.Thread) -> bool:
        told.append(time.monotonic())
        return len(told) == 3

    made = Patience(0.002, take)
    made.begin(threading.current_thread())
    until(lambda: len(told) == 3, "it was told")
    until(lambda: made._is_asleep, "there is nothing more to look at")
    made.begin(threading.current_thread())
    until(lambda: len(told) >= 4, "it was told of what came next")  # and is told again
    made.close()


def test_what_ends_in_time_is_not_noticed(patience: Patience, lost: list[threading.Thread]) -> None:
    me = threading.current_thread()
    for _ in range(2000):
        patience.begin(me)
        patience.end(me)
    assert lost == []


def test_patience_that_is_closed_again_and_again() -> None:
    for _ in range(50):
        made = Patience(0.0005, lambda _: True)
        made.begin(threading.current_thread())
        made.end(threading.current_thread())
        made.close()
        made.close()


@pytest.mark.parametrize("error", [MemoryError, RuntimeError("can't allocate lock")])
def test_who_looks_goes_on_after_a_failure(
    patience: Patience,
    lost: list[threading.Thread],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    failing = [error]

    def fail_once(ident: int) -> bool:
        if failing:
            raise failing.pop()
        return True

    monkeypatch.setattr("pparallel.runtime.leading.patience.has_entered", fail_once)
    patience.begin(threading.current_thread())
    until(lambda: lost == [threading.current_thread()], "it was noticed")
    assert not failing


def test_no_memory_for_the_thread_that_looks(
    patience: Patience, lost: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    me = threading.current_thread()
    with monkeypatch.context() as changed:
        changed.setattr(threading, "Thread", failing_once(threading.Thread))
        patience.begin(me)
    patience.begin(me)
    until(lambda: lost == [me], "it was noticed")


def failing_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what finds no memory the first time, and does what *function* does from then on."""
    failing = [MemoryError()]

    def fail_once(*args: Any, **kwargs: Any) -> Any:
        if failing:
            raise failing.pop()
        return function(*args, **kwargs)

    return fail_once


# -- who leads --------------------------------------------------------------------------------


class Source:
    """Receives acts, and counts how many threads do so at a time."""

    def __init__(self) -> None:
        self.there: deque[Act] = deque()
        self.come = threading.Semaphore(0)
        self.inside = 0
        self.most = 0
        self.ends: list[str] = []
        self.kinds: set[int] = set()
        self.leaders = Leaders("leader", self._receive, self.come.release, self._end)

    def ask(self, *acts: Act) -> None:
        self.there.extend(acts)
        self.come.release()

    def _receive(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.kinds.add(dedicated.kind())
        dedicated.about_to_block()  # what it calls may think so: nobody else receives for it
        self.come.acquire()
        while self.there:
            self.leaders.do(self.there.popleft())
        self.inside -= 1

    def _end(self) -> None:
        self.ends.append(threading.current_thread().name)


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source()
    made.leaders.start()
    yield made
    end(made)
    assert made.kinds == {RECEIVING}


def test_acts_start_in_order_whoever_runs_them(source: Source) -> None:
    started: list[int] = []
    threads: set[threading.Thread] = set()
    go = threading.Event()

    def act(number: int) -> None:
        started.append(number)
        threads.add(threading.current_thread())
        assert number % 10 or go.wait(PATIENCE)

    source.ask(*(lambda n=n: act(n) for n in range(50)))
    until(lambda: len(started) == 50, "all were started")
    assert started == list(range(50))
    assert len(threads) == 6
    assert len(source.leaders.threads()) in (6, 7)  # and one may stand ready
    go.set()
    until(lambda: len(source.leaders.threads()) <= 3, "those that led before have ended")


def test_one_that_is_held_up_before_it_runs_what_blocks(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is to notice may look while the leader is about to run something."""
    begin = Patience.begin

    def begin_slowly(patience: Patience, who: threading.Thread) -> None:
        begin(patience, who)
        threading.Event().wait(0.2)

    monkeypatch.setattr(Patience, "begin", begin_slowly)
    go, ran = threading.Event(), threading.Event()

    def block() -> None:
        assert go.wait(PATIENCE)

    source.ask(block, ran.set)
    assert ran.wait(PATIENCE)
    go.set()


def test_the_role_is_passed_on_once(source: Source) -> None:
    kinds: list[int] = []
    go = threading.Event()

    def act() -> None:
        kinds.append(dedicated.kind())
        for _ in range(3):
            dedicated.about_to_block()
            kinds.append(dedicated.kind())
        assert go.wait(PATIENCE)

    source.ask(act)
    until(lambda: len(kinds) == 4, "it ran")
    assert kinds == [LEADING, ALONE, ALONE, ALONE]
    until(lambda: len(source.leaders.threads()) == 3, "another thread stands ready")
    go.set()


def test_who_fails_leads_on(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()

    def fail() -> None:
        raise SystemExit("a defect")

    source.ask(fail, done.set)
    assert done.wait(PATIENCE)
    assert "A request could not be handled" in caplog.text
    assert len(source.leaders.threads()) <= 3


def test_the_end_does_not_wait_for_what_runs(source: Source) -> None:
    started, go, last = threading.Event(), threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        assert go.wait(PATIENCE)

    source.ask(block, last.set)
    assert started.wait(PATIENCE)
    source.leaders.close()
    source.leaders.wait(PATIENCE)
    assert len(source.ends) == 1
    assert source.leaders.threads()
    go.set()
    assert last.wait(PATIENCE), "what was received was not started"


def test_an_act_may_end_it(source: Source) -> None:
    ended: list[int] = []

    def end() -> None:
        source.leaders.close()
        source.leaders.wait(PATIENCE)
        ended.append(len(source.ends))

    source.ask(end)
    until(lambda: ended == [1], "it has ended")


def test_closing_while_acts_are_run(scale: Callable[[int], int]) -> None:
    for _ in range(scale(1000)):
        source = Source()
        source.leaders.start()
        source.ask(*[dedicated.about_to_block, lambda: None] * 3)
        source.leaders.close()
        source.leaders.wait(PATIENCE)
        assert len(source.ends) == 1
        for each in source.leaders.threads():
            each.join(PATIENCE)


def test_no_thread_can_be_started_the_next_request_is_received(
    source: Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    blocked, go = threading.Event(), threading.Event()
    kinds: list[int] = []

    def block() -> None:
        dedicated.about_to_block()
        blocked.set()
        assert go.wait(PATIENCE)

    with monkeypatch.context() as changed:
        changed.setattr(threading.Thread, "start", start)
        source.ask(block)  # the thread that stands ready leads on
        assert blocked.wait(PATIENCE)
        source.ask(lambda: kinds.append(dedicated.kind()))
        until(lambda: len(kinds) == 1, "a request was not received")
        assert kinds == [ELSEWHERE]  # from now on none may block the last thread
    assert "threads" in caplog.text
    go.set()

    def runs_here() -> bool:
        source.ask(lambda: kinds.append(dedicated.kind()))
        return LEADING in kinds

    until(runs_here, "requests are not run where they are received again")


# -- no memory --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "name"), [(dedicated, "mark_leading"), (Patience, "begin"), (Leaders, "_work")]
)
def test_no_memory_for_a_moment(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
    """As the thread begins, or as it is to run something, which must not be lost."""
    monkeypatch.setattr(where, name, failing_once(getattr(where, name)))
    source, ran = Source(), threading.Event()
    source.leaders.start()
    source.ask(ran.set)
    assert ran.wait(PATIENCE)
    end(source)


def end(source: Source) -> None:
    source.leaders.close()
    source.leaders.wait(PATIENCE)
    for each in source.leaders.threads():
        each.join(PATIENCE)
    assert len(source.ends) == 1
    assert source.most == 1


def test_no_memory_for_a_thread_that_stands_ready(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(**_: Any) -> None:
        raise MemoryError

    passed = threading.Event()
    with monkeypatch.context() as changed:
        changed.setattr(threading, "Thread", make)
        source.ask(dedicated.about_to_block, lambda: None)  # the one that stands ready leads on
        source.ask(passed.set)
        assert passed.wait(PATIENCE)


def test_who_stands_ready_takes_no_memory_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = threading.Event.wait

    def fail(event: threading.Event, timeout: float | None = None) -> bool:
        if sys._getframe(1).f_code.co_name == "_is_called":
            raise RuntimeError("can't allocate lock")
        return wait(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", fail)
    source, passed = Source(), threading.Event()
    source.leaders.start()

    def block() -> None:
        dedicated.about_to_block()
        assert passed.wait(PATIENCE)

    source.ask(block, passed.set)
    assert passed.wait(PATIENCE)
    end(source)


@pytest.mark.parametrize("passes", [False, True])
def test_no_memory_to_log_what_has_failed(
    source: Source, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    def log(*_: Any, **__: Any) -> None:
        raise MemoryError

    def fail() -> None:
        if passes:
            dedicated.about_to_block()
        raise LookupError("for a test")

    monkeypatch.setattr(logging.Logger, "exception", log)
    ran = threading.Event()
    source.ask(fail, ran.set)
    assert ran.wait(PATIENCE)


def test_what_fails_after_the_role_was_passed_on_has_one_lead(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def log(*_: Any) -> None:
        raise LookupError("for a test")

    def fail() -> None:
        dedicated.about_to_block()
        raise LookupError("for a test")

    monkeypatch.setattr("pparallel.runtime.leading.leaders.log_failure", log, raising=False)
    ran = threading.Event()
    source.ask(fail, ran.set)
    assert ran.wait(PATIENCE)
    monkeypatch.undo()
    until(lambda: len(source.leaders.threads()) <= 2, "who led before stands ready, or has ended")
