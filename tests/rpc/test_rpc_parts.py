"""The pieces below RPC groups, each on its own."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from concurrent.futures import Future
from functools import partial
from time import monotonic

import pytest
from exhausted import no_threads
from hypothesis import given
from hypothesis import strategies as st
from late_threads import held_back
from typing_extensions import override

from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    PeerLostError,
    PparallelError,
    ResourceExhaustedError,
    SerializationError,
    WorkerLostError,
)
from pparallel.runtime.future import LeanFuture
from pparallel.runtime.pending import Pending, awaited
from pparallel.runtime.rpc import wire
from pparallel.runtime.rpc.handlers import Handlers, Job
from pparallel.runtime.rpc.window import PATIENCE, Room, Window
from pparallel.runtime.user_code import run
from pparallel.testing.patience import until


class UserHandlers(Handlers):
    """Has each job call its function as that of a user."""

    @override
    def submit(self, key: Hashable, *jobs: Job) -> None:
        super().submit(key, *[partial(run, job, ()) for job in jobs])


@pytest.fixture
def handlers() -> Iterator[Handlers]:
    handlers = UserHandlers(2, "test")
    yield handlers
    handlers.close()
    assert handlers.join(5)


def test_jobs_of_a_stream_start_in_order(handlers: Handlers) -> None:
    started: list[int] = []
    for n in range(2000):
        handlers.submit("stream", lambda n=n: started.append(n))  # type: ignore[misc]
    until(lambda: len(started) == 2000, "not all were run")
    assert started == list(range(2000))


def test_a_slow_job_does_not_hold_back_those_behind_it(handlers: Handlers) -> None:
    gate, passed = threading.Event(), threading.Event()

    def wait() -> None:
        gate.wait(10)

    handlers.submit("stream", wait)
    handlers.submit("stream", passed.set)
    assert passed.wait(10)
    gate.set()


def test_no_more_run_at_once_than_allowed(handlers: Handlers) -> None:
    gate = threading.Event()
    running: list[int] = []

    def run() -> None:
        running.append(1)
        gate.wait(10)

    for n in range(5):
        handlers.submit(n, run)
    until(lambda: len(running) == 2, "two did not run")
    assert not threading.Event().wait(0.05)
    assert len(running) == 2
    gate.set()
    until(lambda: len(running) == 5, "not all were run")


def test_a_job_that_waits_makes_room(handlers: Handlers) -> None:
    gate, last = threading.Event(), threading.Event()

    def wait() -> None:
        with handlers.waiting():
            gate.wait(10)

    for n in range(20):
        handlers.submit(n, wait)
    handlers.submit("last", last.set)
    assert last.wait(10)
    gate.set()


def test_a_job_that_waits_lets_its_own_stream_go_on() -> None:
    handlers = UserHandlers(1, "one")
    passed = threading.Event()

    def wait() -> None:
        with handlers.waiting():
            assert passed.wait(10)

    handlers.submit("stream", wait)
    handlers.submit("stream", passed.set)
    assert passed.wait(10)
    handlers.close()
    assert handlers.join(5)


def test_a_job_that_waits_late_lets_none_pass_the_next_one() -> None:
    handlers = Handlers(4, "order")
    entered: list[int] = []
    read, waits, enters, passed = (threading.Event() for _ in range(4))

    def first() -> None:
        assert read.wait(10)
        with handlers.waiting():
            waits.set()
            assert passed.wait(10)

    def second() -> None:  # which takes long to read its arguments, on a thread that took over
        read.set()
        assert enters.wait(10)
        run(entered.append, (2,))

    def third() -> None:
        run(entered.append, (3,))
        passed.set()

    handlers.submit("stream", partial(run, first, ()), second, third)
    assert waits.wait(10)
    assert not passed.wait(0.05), "the third has passed the second"
    enters.set()
    assert passed.wait(10)
    assert entered == [2, 3]
    handlers.close()
    assert handlers.join(5)


def test_a_job_that_raises_ends_no_thread(
    handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    after = threading.Event()
    handlers.submit("stream", lambda: [][0])
    handlers.submit("stream", after.set)
    assert after.wait(10)
    until(lambda: "A handler of test failed" in caplog.text, "the failure was not logged")


def test_closed_handlers_take_nothing() -> None:
    handlers = UserHandlers(1, "test")
    handlers.close()
    with pytest.raises(ClosedError):
        handlers.submit("stream", print)


def test_a_job_does_not_run_inside_another() -> None:
    handlers = UserHandlers(4, "test")
    assert handlers.enter("a", quickly=False)
    assert not handlers.enter("b", quickly=False)
    handlers.leave()
    assert handlers.enter("b", quickly=False)
    handlers.leave()
    handlers.close()


def test_a_thread_that_is_about_to_start_is_waited_for() -> None:
    """As in a process that a signal stops just then, and that has to end when it goes on."""
    handlers, ran = UserHandlers(1, "test"), threading.Event()
    submits = threading.Thread(target=handlers.submit, args=("stream", ran.set))
    with held_back() as (starting, goes_on):
        submits.start()
        assert starting.wait(10)
    joined: list[bool] = []
    joins = threading.Thread(target=lambda: joined.append(handlers.join(0.1)))
    joins.start()
    assert not threading.Event().wait(0.05)  # it waits for the start, rather than for none
    goes_on.set()
    assert ran.wait(10)
    joins.join()
    assert joined == [False]
    handlers.close()
    assert handlers.join(5)
    submits.join()


def test_the_window_holds_back_and_lets_go() -> None:
    window = Window(10_000, lambda: False)
    first, second, other = Room("a"), Room("a"), Room("b")
    assert window.take(first, 50_000, None) is None  # alone, it may exceed the limit
    thread = threading.Thread(target=lambda: window.take(second, 10, None))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    assert window.take(other, 50_000, 5) == pytest.approx(5, abs=2)  # another member's
    assert other.size == 50_000 + Window.OVERHEAD
    window.give_back(first)
    window.give_back(first)  # as who was interrupted does
    thread.join(10)
    assert (first.size, second.size) == (0, 10 + Window.OVERHEAD)


def test_a_call_that_finds_no_room_keeps_its_time_out() -> None:
    window = Window(10, lambda: False)
    first = Room("a")
    window.take(first, 100, None)
    began = monotonic()
    with pytest.raises(CallTimeoutError, match="max_in_flight"):
        window.take(Room("a"), 1, 0.05)
    assert 0.05 <= monotonic() - began < 5
    left: list[float | None] = []
    waits = threading.Thread(target=lambda: left.append(window.take(Room("a"), 1, 60)))
    waits.start()
    until(lambda: window._waiters == 1, "it does not wait")
    assert not threading.Event().wait(0.1)
    window.give_back(first)
    waits.join(10)
    assert left[0] is not None
    assert left[0] <= 60 - 0.1


def test_a_call_inside_a_called_function_passes_a_full_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    window = Window(10, lambda: True)
    window.take(Room("a"), 100, None)
    began = monotonic()
    window.take(Room("a"), 100, 60)
    assert PATIENCE <= monotonic() - began < 30
    monkeypatch.setattr("pparallel.runtime.rpc.window.PATIENCE", 60.0)
    window.take(Room("a"), 100, 60, is_sync=True)
    assert monotonic() - began < 30


def test_a_closed_window_wakes_those_it_holds_back() -> None:
    window = Window(10, lambda: False)
    window.take(Room("a"), 100, None)
    errors: list[Exception] = []

    def take() -> None:
        try:
            window.take(Room("a"), 1, None)
        except ClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    window.close()
    thread.join(10)
    assert len(errors) == 1


@pytest.fixture
def pending() -> Iterator[Pending[str]]:
    pending: Pending[str] = Pending("the test")
    yield pending
    pending.close()
    assert len(pending) == 0


def test_requests_expire_each_in_its_time(pending: Pending[str]) -> None:
    later = pending.add("a", 60)
    slow = pending.add("a", 0.15)
    quick = pending.add("a", 0.02)
    never = pending.add("a", None)
    with pytest.raises(CallTimeoutError, match=r"'a' was not answered within 0\.02 s"):
        quick.result(10)
    with pytest.raises(TimeoutError):
        slow.result(10)
    again = pending.add("a", 0.01)
    with pytest.raises(CallTimeoutError):
        again.result(10)
    assert not later.done()
    assert not never.done()
    later.set_result("in time")
    never.set_result("late")
    assert len(pending) == 0


def test_a_lost_peer_fails_its_requests_only(pending: Pending[str]) -> None:
    a, b = pending.add("a", None), pending.add("b", None)
    pending.lose("a", "died")
    with pytest.raises(PeerLostError, match="member 'a' died"):
        a.result(10)
    assert not b.done()
    with pytest.raises(PeerLostError):
        pending.add("a", None)


def test_each_future_of_a_lost_member_fails_with_an_error_of_its_own(pending: Pending[str]) -> None:
    futures = [pending.add("other", None) for _ in range(3)]
    pending.lose("other", "died")
    errors = [each.exception(10) for each in futures]
    assert {type(each) for each in errors} == {PeerLostError}
    assert len({id(each) for each in errors}) == 3


def test_time_outs_that_had_no_thread_are_kept_as_soon_as_there_is_one(
    pending: Pending[str],
) -> None:
    with no_threads("pparallel-timers"), pytest.raises(ResourceExhaustedError):
        pending.add("a", 0.01)
    assert len(pending) == 0
    with pytest.raises(CallTimeoutError):
        pending.add("a", 0.01).result(10)


def test_a_reply_at_the_last_moment_is_returned() -> None:
    class Late(LeanFuture[int]):
        @override
        def result(self, timeout: float | None = None) -> int:
            try:
                return super().result(0)
            finally:
                if not self.done():
                    self.set_result(3)

    assert awaited(Late(), "a", 0.01) == 3


def test_closing_fails_everything(pending: Pending[str]) -> None:
    futures = [pending.add("a", 10), pending.add("b", None)]
    pending.close()
    for future in futures:
        with pytest.raises(ClosedError, match="the test"):
            future.result(10)
    with pytest.raises(ClosedError):
        pending.add("a", None)


@given(st.lists(st.binary()), st.lists(st.binary()), st.integers(0, 2**64 - 1))
def test_messages_come_apart_as_they_were_joined(
    body: list[bytes], buffers: list[bytes], number: int
) -> None:
    message = wire.split(wire.renumbered(wire.join(2, body, buffers), number))
    assert (message.kind, message.number) == (2, number)
    assert (list(message.body), message.buffers) == (body, buffers)


@pytest.mark.parametrize("frames", [[], [b""], [b"short"], wire.join(1, [b"a", b"b"])[:2]])
def test_damaged_messages_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(SerializationError):
        wire.split(frames)


ERRORS = [
    CallTimeoutError("x", 1.0),
    ClosedError("x", consequence=True),
    PeerLostError("x", "died"),
    WorkerLostError(3, -9),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: PparallelError) -> None:
    import pickle

    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


def test_a_future_is_settled_once() -> None:
    from pparallel.runtime.future import fail, settle

    future: Future[int] = Future()
    settle(future, 1)
    settle(future, 2)
    fail(future, ValueError())
    assert future.result() == 1
