"""Requests that may come twice, and those that are sent again: each piece on its own."""

from __future__ import annotations

import threading
import time
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError
from pparallel.interfaces.transport import Frames, Handler, Transport
from pparallel.runtime.rpc import caller
from pparallel.runtime.rpc.called import Arrivals
from pparallel.runtime.rpc.caller import Retries
from pparallel.runtime.timers import Timers
from pparallel.testing.patience import until
from pparallel.testing.threads import in_threads


@given(st.lists(st.integers(0, 40), max_size=120))
def test_each_number_is_taken_once_in_any_order(numbers: list[int]) -> None:
    arrivals = Arrivals()
    taken = [number for number in numbers if arrivals.take(number)]
    assert taken == list(dict.fromkeys(numbers))
    all_below = range(max(numbers, default=-1) + 1)
    assert [n for n in all_below if arrivals.take(n)] == sorted(set(all_below) - set(taken))


@given(st.lists(st.tuples(st.sampled_from(["take", "release"]), st.integers(0, 20))))
def test_what_is_released_is_not_taken_any_more(steps: list[tuple[str, int]]) -> None:
    arrivals = Arrivals()
    done: set[int] = set()
    kept: set[int] = set()
    for what, number in steps:
        if what == "release":
            arrivals.release([number])
            kept.discard(number)
        else:
            assert arrivals.take(number, True) == (number not in done)
            kept |= {number} - done
        done.add(number)
        assert len(arrivals.answers) == len(kept)


def test_memory_is_bounded_by_what_was_lost() -> None:
    arrivals = Arrivals()
    for number in range(10_000):
        assert number in (17, 400) or arrivals.take(number)
    assert len(arrivals._gaps) == 2
    assert arrivals.take(17)
    assert not arrivals.take(17)
    assert len(arrivals._gaps) == 1


def test_numbers_far_apart_cost_no_more_than_their_requests() -> None:
    arrivals = Arrivals()
    tracemalloc.start()
    try:
        for number in (2**40, 2**63, 2**63 + 10):
            assert arrivals.take(number)
        assert tracemalloc.get_traced_memory()[1] < 2**16
    finally:
        tracemalloc.stop()
    assert arrivals.take(2**63 + 5)
    assert not arrivals.take(2**63 + 5)
    assert arrivals.take(5)
    assert not arrivals.take(5)


def test_gaps_are_forgotten_when_there_are_too_many() -> None:
    arrivals = Arrivals()
    for number in range(0, 4 * Arrivals.MOST_GAPS, 2):
        assert arrivals.take(number)
    assert len(arrivals._gaps) <= Arrivals.MOST_GAPS
    assert not arrivals.take(1)
    assert arrivals.take(4 * Arrivals.MOST_GAPS - 3)


def test_one_of_many_threads_takes_a_number() -> None:
    arrivals = Arrivals()
    taken = in_threads(4, lambda _: [n for n in range(2000) if arrivals.take(n)])
    assert Counter(n for each in taken for n in each) == Counter(range(2000))


def test_an_answer_is_given_again_as_it_was() -> None:
    arrivals = Arrivals()
    memory = bytearray(b"first")
    assert arrivals.take(0, True)
    waiting = arrivals.answer(0)
    reply: Future[Frames] = Future()
    arrivals.keep(0, reply)
    assert not waiting.done()
    reply.set_result([b"header", memory, memoryview(b"read-only")])
    memory[:] = b"later"
    for answer in (waiting, arrivals.answer(0)):
        header, body, last = answer.result(10)
        assert (header, body, last) == (b"header", b"first", b"read-only")
        assert isinstance(body, bytearray)
    arrivals.release([0])
    assert not arrivals.answers
    assert not arrivals.answer(0).done()


def test_a_sender_that_ended_is_not_served() -> None:
    arrivals = Arrivals()
    assert arrivals.take(0, True)
    assert arrivals.take(5)
    arrivals.end()
    assert (arrivals.answers, arrivals._gaps) == ({}, [])
    assert not any(arrivals.take(number) for number in (0, 3, 6, 2**64 - 1))


Attempt = Callable[[Future[Frames]], object]


class Scripted(Transport):
    """Does with each request what the test says, and then nothing."""

    def __init__(self, *script: Attempt) -> None:
        self.script = list(script)
        self.sent: list[Future[Frames]] = []
        self.there = ["me", "other"]

    @property
    @override
    def name(self) -> str:
        return "me"

    @override
    def members(self) -> list[str]:
        return self.there

    @override
    def open(self, handler: Handler) -> None:
        raise NotImplementedError

    @override
    def close(self) -> None:
        raise NotImplementedError

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        future: Future[Frames] = Future()
        self.sent.append(future)
        if self.script:
            self.script.pop(0)(future)
        return future


def answers(future: Future[Frames]) -> None:
    future.set_result([b"answer"])


def says_nothing(future: Future[Frames]) -> None:
    pass


def breaks(future: Future[Frames]) -> None:
    future.set_exception(PeerLostError("other", "broke the connection"))


def refuses(future: Future[Frames]) -> None:
    message = "other"
    raise PeerLostError(message, "broke the connection")


class Told:
    """What the other member was told to forget."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.fails = 0

    def __call__(self, to: str, numbers: Sequence[int]) -> Future[object]:
        self.calls.append(list(numbers))
        reply: Future[object] = Future()
        if len(self.calls) <= self.fails:
            reply.set_exception(CallTimeoutError("it", 1.0))
        else:
            reply.set_result(None)
        return reply


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    monkeypatch.setattr(caller, "SOON", 0.02)
    return Told()


@pytest.fixture
def start(told: Told) -> Iterator[Callable[..., tuple[Retries, Scripted]]]:
    started: list[Retries] = []

    def start(*script: Attempt, first: float = 0.001) -> tuple[Retries, Scripted]:
        transport = Scripted(*script)
        started.append(Retries(transport, first, told, Timers("test")))
        return started[-1], transport

    yield start
    for each in started:
        each.timers.close()


Start = Callable[..., tuple[Retries, Scripted]]


@settings(max_examples=20)
@given(script=st.lists(st.sampled_from([says_nothing, breaks, refuses]), max_size=4))
def test_a_request_is_sent_until_it_is_answered(script: list[Attempt]) -> None:
    transport = Scripted(*script, answers)
    sender = Retries(transport, 0.0005, Told(), Timers("test"))
    assert sender.send("other", 0, [b"?"], 10.0).result(10) == [b"answer"]
    assert len(transport.sent) == len(script) + 1
    sender.timers.close()


def test_the_first_answer_counts_whichever_attempt_it_is_for(start: Start) -> None:
    sender, transport = start(says_nothing, says_nothing, says_nothing)
    answer = sender.send("other", 0, [b"?"], None)
    until(lambda: len(transport.sent) >= 2, "it was not sent again")
    transport.sent[0].set_result([b"late"])
    assert answer.result(10) == [b"late"]
    sent = len(transport.sent)
    transport.sent[1].set_result([b"again"])
    assert not threading.Event().wait(0.03)
    assert len(transport.sent) == sent


def test_attempts_come_at_growing_intervals(start: Start) -> None:
    sender, transport = start(first=0.02)
    began = time.monotonic()
    with pytest.raises(CallTimeoutError, match=r"'other' was not answered within 0\.6 s"):
        sender.send("other", 0, [b"?"], 0.6).result(10)
    assert 0.6 <= time.monotonic() - began < 5
    # After 0, 20, 60, 140 and 300 ms; a busy machine leaves some out.
    assert 2 <= len(transport.sent) <= 5


def test_a_lost_attempt_holds_nothing_of_the_answer(start: Start) -> None:
    sender, transport = start(says_nothing)
    answer = sender.send("other", 0, [b"?"], None)
    until(lambda: len(transport.sent) >= 2, "it was not sent again")
    transport.sent[1].set_result([b"answer"])
    there = weakref.ref(answer)
    transport.sent[1:] = []
    del answer
    until(lambda: there() is None, "the answer was kept")
    assert not transport.sent[0].done()


def test_a_member_that_is_gone_is_not_asked_again(start: Start) -> None:
    sender, transport = start(breaks, first=0.001)
    transport.there = ["me"]
    with pytest.raises(PeerLostError):
        sender.send("other", 0, [b"?"], None).result(10)
    assert len(transport.sent) == 1


def test_the_end_is_not_retried(start: Start) -> None:
    sender, transport = start(lambda future: future.set_exception(ClosedError("it")))
    with pytest.raises(ClosedError):
        sender.send("other", 0, [b"?"], None).result(10)
    assert len(transport.sent) == 1


def test_the_other_member_is_told_what_it_may_forget(start: Start, told: Told) -> None:
    sender, _ = start(answers, answers, answers)
    for number in range(3):
        sender.send("other", number, [b"?"], None)
    assert told.calls == [[0], [1], [2]]


def test_it_is_told_again_until_it_has_heard(start: Start, told: Told) -> None:
    told.fails = 2
    sender, _ = start(answers)
    sender.send("other", 7, [b"?"], None)
    until(lambda: told.calls == [[7], [7], [7]], "it was not told again")
