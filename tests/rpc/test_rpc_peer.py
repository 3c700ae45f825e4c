"""What is asked of another member and what it asks: order, batches, deadlines, at most once."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rpc_fakes import Answered, FakePeer, ask, call, made, raising, result

from pparallel.errors import CallTimeoutError, PeerLostError, SerializationError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.rpc.codec import (
    ACK,
    CALL,
    EXCHANGE,
    FAILED,
    IDEMPOTENT,
    LIMIT,
    OK,
    RESULT,
)
from pparallel.runtime.rpc.peer import (
    FULL,
    HELD,
    LONGEST,
    MANY,
    MOST,
    SOON,
    Arrived,
)

# -- what leaves together ---------------------------------------------------------------------


def test_the_first_call_leaves_at_once_and_others_leave_together_when_it_is_answered() -> None:
    it = FakePeer()
    it.call()
    assert it.ids() == [[1]]
    for _ in range(5):
        it.call()
    assert it.ids() == []
    it.arrive(result(1))
    assert it.ids() == [[2, 3, 4, 5, 6]]


def test_calls_leave_when_they_are_many_or_large_or_after_a_moment() -> None:
    it = FakePeer()
    for _ in range(1 + MOST):
        it.call()
    assert it.ids() == [[1], [*range(2, 2 + MOST)]]
    it.call(data=bytes(FULL))
    assert it.ids() == [[2 + MOST]]
    it.call()
    assert it.ids() == []
    it.timers.advance(HELD)
    assert it.ids() == [[3 + MOST]]


def test_results_leave_together() -> None:
    it = FakePeer()
    for number in range(1, 4):
        it.peer.post((result(number), ()))
    assert it.ids() == []
    it.timers.advance(HELD)
    assert it.ids() == [[1, 2, 3]]


def test_what_the_runtime_asks_leaves_at_once_after_the_calls_before_it() -> None:
    it = FakePeer()
    it.call()
    it.call()
    it.peer.ask_async(Answered(), "key", None, (), None)
    it.call()
    assert it.ids() == [[1], [2], [3]]
    it.peer.flush()
    assert it.ids() == [[4]]


def test_what_is_put_in_while_another_message_is_sent_follows_it() -> None:
    it = FakePeer()

    def ask_more() -> None:
        it.peer.ask_async(Answered(), "key", None, (), None)
        assert it.transport.sent == [], "it has overtaken the message before it"

    it.transport.when_sending = ask_more
    it.call()
    assert it.ids() == [[1], [2]]


def test_a_call_that_is_waited_for_does_not_overtake_one_before_an_expired_one() -> None:
    it = FakePeer()
    it.call(timeout=60)
    it.call(timeout=0.1)
    it.timers.advance(1)
    found = it.peer.call(0, made(b"call"), (), 5.0, Answered)
    assert isinstance(found, Answered), "it has overtaken the first"
    it.arrive(result(1), result(2), result(3))
    it.transport.reply = lambda _: [it.codec.head(result(4), EXCHANGE)]
    assert it.peer.call(0, made(b"call"), (), 5.0, Answered) == (result(4), [])


def test_a_call_that_is_waited_for_does_not_overtake_what_is_confirmed_before_it_runs() -> None:
    it = FakePeer()
    it.transport.reply = lambda _: [it.codec.head(result(0), EXCHANGE)]
    it.peer.call_async(Answered(), 0, made(b"call"), (), 5.0, "ref")
    it.arrive(result(1))
    assert it.peer.ask("key", None, (), None) is not None
    found = it.peer.call(0, made(b"call"), (), 5.0, Answered)
    assert isinstance(found, Answered), "it has overtaken the first"
    it.arrive(result(3))
    assert found.done
    assert it.peer.call(0, made(b"call"), (), 5.0, Answered) == (result(0), [])


def test_a_call_that_finds_no_way_for_an_exchange_goes_on_within_its_time_out() -> None:
    it = FakePeer()

    def no_way(_: Frames) -> None:
        it.timers.now += 2

    it.transport.reply = no_way
    it.peer.call(0, made(b"call"), (), 5.0, Answered)
    [[item]] = it.messages()
    assert item[LIMIT] == 3


# -- deadlines and room -----------------------------------------------------------------------


def test_requests_expire_each_in_its_time_and_a_late_result_is_dropped() -> None:
    it = FakePeer()
    late, soon, never = it.call(timeout=5), it.call(timeout=1), it.call(timeout=None)
    it.timers.advance(1)
    assert isinstance(soon.error, CallTimeoutError)
    assert "1 s" in str(soon.error)
    assert not late.done
    it.timers.advance(4)
    assert isinstance(late.error, CallTimeoutError)
    it.timers.advance(1e6)
    assert not never.done
    it.arrive(result(1), result(2), result(3, "value"))
    assert never.item == result(3, "value")
    assert it.peer._used == 0


@pytest.mark.parametrize("is_answered", [True, False])
def test_an_expired_call_takes_its_room_until_it_cannot_wait_any_more(is_answered: bool) -> None:
    it = FakePeer(limit=3000)
    first = it.call(data=bytes(2000), timeout=1)
    it.messages()
    it.timers.advance(1)
    assert isinstance(first.error, CallTimeoutError)
    with pytest.raises(CallTimeoutError, match="max_in_flight"):
        it.peer.call_async(Answered(), 0, made(bytes(2000)), (), 0.0)
    if is_answered:
        it.arrive(result(1))
    else:
        it.peer.reset(PeerLostError("other", "broke the connection"))
    assert it.peer._used == 0


def test_what_cannot_be_sent_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    it = FakePeer()
    sent: list[list[int]] = []

    def send(to: str, frames: Frames) -> None:
        items = pickle.loads(bytes(frames[0])[:-1])[1:]
        if any(item[1] == 3 for item in items):
            raise SerializationError("a message", "it is too large")
        sent.append([item[1] for item in items])

    monkeypatch.setattr(it.transport, "send", send)
    calls = [it.call() for _ in range(4)]
    it.timers.advance(HELD)
    assert sent == [[1], [2], [4]]
    assert isinstance(calls[2].error, SerializationError)
    assert not calls[1].done
    assert not calls[3].done
    for number in (7, 3, 8):
        it.peer.post((result(number), ()))
    it.timers.advance(HELD)
    assert sent[3:] == [[7], [8]]


def test_without_memory_for_a_message_the_caller_has_an_error_and_the_next_is_sent() -> None:
    it = FakePeer()
    it.transport.when_sending = raising(MemoryError())
    assert isinstance(it.call().error, MemoryError)
    it.call()
    it.peer.flush()
    assert it.ids() == [[2]]
    it.transport.when_sending = raising(MemoryError())
    it.peer.post((result(1), ()))
    it.peer.flush()
    assert it.messages()[0][0][:3] == (RESULT, 1, FAILED)


def test_deadlines_are_looked_at_by_one_timer() -> None:
    it = FakePeer()
    for _ in range(100):
        it.call(timeout=100)
        it.call(timeout=1)
        it.timers.advance(0.25)
    assert len(it.timers._heap) < 10


def test_a_wait_for_room_counts_in_the_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    it = FakePeer(limit=3000)
    it.call(data=bytes(2000))

    def wait(seconds: float | None) -> bool:
        it.timers.now += 2
        it.arrive(result(1))
        return True

    monkeypatch.setattr(it.peer._room, "wait", wait)
    it.messages()
    it.call(data=bytes(2000), timeout=5)
    assert it.messages()[0][0][3] == pytest.approx(3)


# -- at most once -----------------------------------------------------------------------------


@given(st.lists(st.integers(1, 60)), st.integers(0, 60))
def test_each_id_is_taken_once_in_any_order(numbers: list[int], mark: int) -> None:
    arrived, seen = Arrived(), set[int]()
    for number in numbers:
        assert arrived.add(number) == (number not in seen)
        seen.add(number)
    arrived.cut(mark)
    highest = max(seen, default=0)
    for number in range(1, highest + 1):
        assert arrived.add(number) == (number not in seen and number >= mark)
    assert len(arrived) == 0


def test_a_request_that_comes_again_is_not_run_again() -> None:
    it = FakePeer()
    assert len(it.arrive(call(1), call(3), ask(4))) == 3
    assert it.arrive(call(1), call(3), ask(4)) == []
    assert len(it.arrive(call(2))) == 1
    assert len(it.arrive(call(7), mark=7)) == 1
    assert it.arrive(call(5), call(6)) == [], "their sender no longer waits for them"


def test_the_result_of_an_idempotent_call_is_given_again_until_it_is_acknowledged() -> None:
    it = FakePeer()
    memory = bytearray(b"result")
    assert len(it.arrive(call(1, flags=IDEMPOTENT))) == 1
    assert it.arrive(call(1, flags=IDEMPOTENT)) == []
    assert it.ids() == [], "it runs still"
    it.peer.post(((RESULT, 1, 2, None, 1, 1), [memory]))
    it.peer.flush()
    memory[:] = b"change"
    assert it.ids() == [[1]]
    it.arrive(call(1, flags=IDEMPOTENT))
    it.peer.flush()
    assert bytes(it.transport.sent[0][1]) == b"result"
    assert it.ids() == [[1]]
    it.arrive((ACK, [1], 0))
    assert it.arrive(call(1, flags=IDEMPOTENT)) == []
    it.peer.flush()
    assert it.ids() == []
    assert not it.peer.kept


def test_memory_is_bounded_while_one_call_lasts() -> None:
    """The first request is never answered; all after it are acknowledged, each by its id."""
    it, called = FakePeer(), FakePeer()
    it.call()
    most = 0
    for _ in range(2000):
        it.call(IDEMPOTENT)
        it.peer.flush()
        for items in it.messages():
            for item, _ in called.arrive(*items):
                if item[1] != 1:
                    called.peer.post((result(item[1]), ()))
        called.peer.flush()
        for items in called.messages():
            it.arrive(*items)
        most = max(most, len(called.peer.kept))
    assert most <= 2 * MANY
    assert len(called.peer.arrived) == 0
    assert [*it.peer.requests] == [1]


def test_an_idempotent_call_is_sent_again_at_growing_intervals_until_it_is_answered() -> None:
    it = FakePeer(retry_after=1.0)
    sink = it.call(IDEMPOTENT, timeout=None)
    [[item]] = it.messages()
    assert item == (CALL, 1, threading.get_ident(), 0.0, IDEMPOTENT, None, made(b"call"), 0)
    for wait in (1, 2, 4):
        it.timers.advance(wait - 0.01)
        assert it.ids() == []
        it.timers.advance(0.01)
        assert it.ids() == [[1]]
    it.peer._resend(1, 5000)  # after two days
    it.timers.advance(LONGEST)
    assert it.ids() == [[1]] * 4  # both go on
    it.arrive(result(1, "value"))
    assert sink.item == result(1, "value")
    it.timers.advance(SOON)
    assert it.messages() == [[(ACK, [1], 0)]]
    it.timers.advance(100)
    assert it.messages() == []


# -- what fails -------------------------------------------------------------------------------


def test_a_reset_fails_what_waits_unless_it_is_sent_again() -> None:
    it = FakePeer()
    plain, again = it.call(), it.call(IDEMPOTENT, timeout=5)
    it.peer.flush()
    it.messages()
    it.peer.reset(PeerLostError("other", "broke the connection"))
    assert isinstance(plain.error, PeerLostError)
    assert not again.done
    it.timers.advance(0.2)
    assert it.ids() == [[2]], "it is not sent again"
    it.timers.advance(5)
    assert isinstance(again.error, CallTimeoutError)
    it.arrive(result(2))
    assert it.peer._used == 0
    it.messages()
    it.call()
    assert it.ids() == [[3]], "the next waits for the answer to what was lost"


def test_a_message_whose_send_is_interrupted_is_sent_again() -> None:
    it = FakePeer()
    it.transport.when_sending = raising(KeyboardInterrupt())
    sink = Answered()
    with pytest.raises(KeyboardInterrupt):
        it.peer.call_async(sink, 0, made(b"call"), (), 5.0)
    assert not sink.done
    it.timers.advance(HELD)
    assert it.ids() == [[1]]
    it.call()
    it.peer.flush()
    assert it.ids() == [[2]]


@pytest.mark.parametrize("is_large", [False, True])
def test_a_result_whose_send_is_interrupted_is_sent_again_or_said_to_be_lost(
    is_large: bool,
) -> None:
    it = FakePeer()
    it.transport.when_sending = raising(KeyboardInterrupt())
    sent = (RESULT, 1, OK, None, 0, 1), [bytes(9)]  # which the transport may have moved by then
    it.peer.post(sent if is_large else (result(1), ()))
    with pytest.raises(KeyboardInterrupt):
        it.peer.flush()
    it.timers.advance(HELD)
    [[item]] = it.messages()
    assert item[:3] == (RESULT, 1, FAILED if is_large else OK)


def test_where_there_is_no_way_for_an_exchange_a_call_goes_as_a_message() -> None:
    it = FakePeer()
    it.transport.reply = lambda _: None
    assert isinstance(it.peer.call(0, made(b"call"), (), 5.0, Answered), Answered)
    assert it.ids() == [[2]]
    assert it.peer.ask("key", None, (), None) is None


@pytest.mark.parametrize("use", ["call", "call_async", "ask", "ask_async"])
def test_the_end_fails_what_waits_and_what_comes(use: str) -> None:
    it = FakePeer()
    waiting = [it.call(), it.call(IDEMPOTENT)]
    it.peer.end(lambda: PeerLostError("other", "died"))
    assert [type(each.error) for each in waiting] == [PeerLostError] * 2
    assert waiting[0].error is not waiting[1].error
    uses: dict[str, Callable[[], object]] = {
        "call": lambda: it.peer.call(0, made(b""), (), None, Answered),
        "call_async": it.call,
        "ask": lambda: it.peer.ask("key", None, (), None),
        "ask_async": lambda: it.peer.ask_async(Answered(), "key", None, (), None),
    }
    with pytest.raises(PeerLostError, match="died"):
        uses[use]()
    it.messages()
    it.timers.advance(1000)
    assert it.messages() == []
