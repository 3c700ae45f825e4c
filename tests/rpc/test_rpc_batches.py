"""Calls that leave together: what is sent and when, and whatever comes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from types import FunctionType
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rpc_members import between, launch

import pparallel
from pparallel import Runtime
from pparallel.errors import ClosedError, PeerLostError
from pparallel.interfaces.transport import Frames, Transport
from pparallel.runtime.rpc import RpcGroup, batches, wire
from pparallel.runtime.rpc.batches import ENOUGH, SMALL, TOGETHER, Batches, Call
from pparallel.runtime.rpc.future import RpcFuture, Way
from pparallel.runtime.rpc.quick import Quick
from pparallel.runtime.rpc.requests import Requests
from pparallel.runtime.rpc.window import Window
from pparallel.runtime.rpc.wire import Kind, Status
from pparallel.runtime.timers import Timers
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel_serializers import PickleSerializerConfig

ROOM = 2**20
SERIALIZER = pparallel.build(PickleSerializerConfig())


def one(n: int) -> int:
    return n


def two(n: int) -> int:
    return -n


first, second = cast("FunctionType", one), cast("FunctionType", two)


class Member:
    """Calls another one, whose part the test plays."""

    def __init__(self, room: int = ROOM) -> None:
        self.quick = Quick(SERIALIZER)
        requests = Requests(SERIALIZER, self.quick, ["a", "b"])
        self.window = Window(room, lambda: False)
        self.timers = Timers("test")
        self.sent: list[tuple[int, int, Any, Future[Frames]]] = []
        self.problem: BaseException | None = None
        self.batches = Batches(
            cast("Transport", self), requests, self.quick, self.window, self.timers
        )

    def send(self, to: str, frames: Frames, timeout: float | None, future: Future[Frames]) -> None:
        if self.problem is not None:
            raise self.problem
        kind, _, _, _, _, number, _ = wire.fields(frames[0])
        self.sent.append((kind, number, self.quick.read(frames[1]), future))

    def call(
        self, n: int, to: str = "a", what: Any = first, timeout: float | None = None
    ) -> RpcFuture[Any]:
        future: RpcFuture[Any] = RpcFuture(Way(self._decode, _waiting, _same), to)
        assert self.batches.put(to, timeout, self.of(what, n, future))
        return future

    def _decode(self, _: str, frames: Frames) -> Any:
        return self.quick.read(frames[1])

    def of(self, what: FunctionType, n: int, future: RpcFuture[Any] | None = None) -> Call:
        """Return a call with one argument."""
        name = self.quick.name(what)
        assert name is not None
        return future or _nobody(), name, (n,), None

    def asked(self) -> list[list[int]]:
        """Return the arguments of the calls in what was sent."""
        return [[n for (n,) in data[1]] for kind, _, data, _ in self.sent if kind == Kind.BATCH]

    def numbers(self) -> list[int]:
        """Return the arguments of all calls that were sent."""
        return [n for each in self.asked() for n in each]

    def answer(
        self,
        indices: Sequence[int],
        values: Sequence[Any],
        framed: Sequence[tuple[int, int]] = (),
        *frames: Any,
        of: int = -1,
    ) -> None:
        body = self.quick.dumps((list(indices), list(values), list(framed)))
        self.sent[of][3].set_result([wire.QUICK_OK, body, *frames])

    def free(self) -> int:
        """Return how much room there is."""
        return ROOM - sum(self.window._used.values())


def _waiting(*_: object) -> AbstractContextManager[None]:
    return nullcontext()


def _same(error: BaseException) -> BaseException:
    return error


@pytest.fixture
def member() -> Iterator[Member]:
    found = Member()
    yield found
    found.problem = ClosedError("the transport")
    found.batches.close()
    found.timers.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held does not leave by itself."""
    monkeypatch.setattr(batches, "HELD", PATIENCE)


# -- what leaves, and when --------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
def test_a_batch_that_cannot_be_written_fails_and_the_next_leaves(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(data: object) -> bytes:
        raise MemoryError

    under_way = member.call(0)
    futures = [member.call(n) for n in (1, 2)]
    with monkeypatch.context() as patch:
        patch.setattr(member.quick, "dumps", fail)
        member.batches.flush("a")
        for each in futures:
            with pytest.raises(MemoryError):
                each.result(0)
    member.answer([0], [0])
    assert under_way.result(0) == 0
    assert member.free() == ROOM
    member.call(3)  # nothing is under way: it leaves at once
    assert member.asked() == [[0], [3]]


@pytest.mark.usefixtures("patient")
def test_the_first_leaves_at_once_and_others_wait_for_one_another(member: Member) -> None:
    futures = [member.call(n) for n in range(1 + 2 * TOGETHER + 1)]
    full = [list(range(start, start + TOGETHER)) for start in (1, 1 + TOGETHER)]
    assert member.asked() == [[0], *full]
    member.batches.flush("b")
    assert len(member.sent) == 3
    member.batches.flush("a")
    assert member.asked() == [[0], *full, [1 + 2 * TOGETHER]]
    for n, numbers in enumerate(member.asked()):
        member.answer(range(len(numbers)), numbers, of=n)
    assert [each.result(0) for each in futures] == list(range(2 + 2 * TOGETHER))
    assert member.free() == ROOM
    assert not member.batches.held
    member.call(7)  # nothing is under way any more
    assert member.asked()[-1] == [7]


@pytest.mark.usefixtures("patient")
def test_who_waits_sends_what_is_held_unless_the_other_member_has_enough_to_do(
    member: Member,
) -> None:
    member.call(0)
    member.call(1)
    member.batches.flush_all(ENOUGH)  # one is under way
    member.call(2)
    member.batches.flush_all(ENOUGH)  # two are
    assert member.asked() == [[0], [1]]
    member.answer([0], [0], of=0)
    member.call(3)
    member.batches.flush_all(ENOUGH)
    assert member.asked() == [[0], [1], [2, 3]]
    member.call(4, "b")
    member.call(5, "b")
    member.call(6)
    member.batches.flush_all(ENOUGH)
    assert member.asked()[3:] == [[4], [5]]


@pytest.mark.usefixtures("patient")
def test_what_has_been_under_way_for_long_keeps_nobody_waiting(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        member.call(n)
        member.batches.flush_all()
    monkeypatch.setattr(batches, "HELD", 0.0)
    member.call(3)
    assert member.batches.flush_all(ENOUGH)
    assert member.numbers() == [0, 1, 2, 3]


def test_what_follows_waits_until_another_thread_has_sent_what_went_before(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_sending, may_go = threading.Event(), threading.Event()
    send = member.send

    def send_late(to: str, frames: Frames, *args: Any) -> None:
        if threading.current_thread() is not threading.main_thread():  # it is the timers'
            is_sending.set()
            may_go.wait(PATIENCE)
        send(to, frames, *args)

    monkeypatch.setattr(member, "send", send_late)
    member.call(0)  # leaves at once
    member.call(1)
    assert is_sending.wait(PATIENCE)
    threading.Timer(0.05, may_go.set).start()
    member.call(2)
    member.batches.flush("a")
    assert member.numbers() == [0, 1, 2]
    assert member.batches.may_be_overtaken("a")  # it may not have arrived yet
    assert not member.batches.may_be_overtaken("b")
    for n in range(3):
        member.answer([0], [n], of=n)
    assert not member.batches.may_be_overtaken("a")


@pytest.mark.usefixtures("patient")
def test_who_waits_does_not_wait_for_a_batch_of_another_thread(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = member.batches.requests.batch

    def have_another_wait(*args: Any) -> Frames:
        monkeypatch.undo()
        in_threads(1, lambda _: member.batches.flush_all())
        return batch(*args)

    monkeypatch.setattr(member.batches.requests, "batch", have_another_wait)
    member.call(0)
    assert member.numbers() == [0]


@pytest.mark.parametrize("backend", ["ipc", "zmq"])
def test_calls_of_a_thread_start_in_order_whoever_sends_them(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = batches._Batch._send

    def send_late(self: batches._Batch, *args: Any) -> Any:
        if get_ident() != self.key[1]:  # for the thread that has called
            threading.Event().wait(0.001)
        return send(self, *args)

    def program(_: Runtime, group: RpcGroup) -> None:
        for n in range(300):
            if n % 7 == 3:
                group.rpc_sync(1, note, args=(n,))
            else:
                group.rpc_async(1, note, args=(n,))
            if n % 5 == 2:
                threading.Event().wait(0.0012)  # so that others send what is held
        group.rpc_sync(1, int)

    monkeypatch.setattr(batches._Batch, "_send", send_late)
    started.clear()
    launch(between(program), 2, backend)
    assert started == list(range(300))


started: list[int] = []


def note(n: int) -> None:
    started.append(n)


def test_what_nobody_flushes_leaves_soon(member: Member) -> None:
    for n in range(3):
        member.call(n)
    until(lambda: member.numbers() == [0, 1, 2], "it was kept")


@pytest.mark.usefixtures("patient")
def test_members_threads_and_time_outs_are_kept_apart(member: Member) -> None:
    for n in range(2):
        member.call(n, "a", timeout=1.0)
        member.call(10 + n, "b")
    both = threading.Barrier(2)  # else the second may be the first, as the system names threads

    def call(thread: int) -> None:
        both.wait(PATIENCE)
        for n in range(2):
            member.call(100 * (thread + 1) + n, "b")
        both.wait(PATIENCE)

    in_threads(2, call)
    member.call(2, "a", timeout=2.0)
    assert member.asked() == [[0], [10], [1]]  # the last two have different time-outs
    member.batches.flush_all()
    assert sorted(member.asked()[3:]) == [[2], [11], [100, 101], [200, 201]]
    assert not member.batches.held


@given(st.lists(st.sampled_from(["call", "other", "flush", "wait", "reply"]), max_size=120))
def test_calls_of_a_thread_leave_in_order_and_each_once(steps: list[str]) -> None:
    member, called, answered = Member(), {"a": 0, "b": 0}, 0
    futures = []
    for step in steps:
        if step in ("call", "other"):
            to = "a" if step == "call" else "b"
            futures.append((called[to], member.call(called[to], to)))
            called[to] += 1
        elif step == "flush":
            member.batches.flush_all()
        elif step == "wait":
            member.batches.flush_all(ENOUGH)
        elif answered < len(member.sent):
            numbers = member.asked()[answered]
            member.answer(range(len(numbers)), numbers, of=answered)
            answered += 1
    member.batches.flush_all()
    for n in range(answered, len(member.sent)):
        member.answer(range(len(member.asked()[n])), member.asked()[n], of=n)
    assert [each.result(0) for _, each in futures] == [n for n, _ in futures]
    assert sum(len(each) for each in member.asked()) == sum(called.values())
    assert member.free() == ROOM
    member.batches.close()
    member.timers.close()


def test_a_full_window_holds_callers_back() -> None:
    room = 3 * TOGETHER * (SMALL + Window.OVERHEAD)
    member = Member(room)
    many, done = 5 * TOGETHER, threading.Event()

    def work(thread: int) -> None:
        if thread == 0:
            for n in range(many):
                member.call(n)
            done.set()
            return
        while not done.wait(0.001):
            for n, sent in enumerate(list(member.sent)):
                if not sent[3].done():
                    numbers = [n for (n,) in sent[2][1]]
                    member.answer(range(len(numbers)), numbers, of=n)

    in_threads(2, work)
    assert member.numbers()[:TOGETHER] == list(range(TOGETHER))
    assert len(member.sent) >= many // TOGETHER - 1
    member.problem = ClosedError("the transport")
    member.batches.close()
    member.timers.close()


# -- what comes back ---------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
def test_results_come_in_parts(member: Member) -> None:
    futures = [member.call(n, timeout=60.0) for n in range(5)]
    member.batches.flush_all()
    one, numbers = member.sent[1][1], [1, 2, 3, 4]
    assert member.asked()[1] == numbers
    member.answer([2, 0], [3, 1], of=1)
    assert [each.done() for each in futures] == [False, True, False, True, False]
    assert member.sent[2][0] == Kind.REST
    assert member.sent[2][2] == one
    failed = wire.join(Status.OK, [member.quick.dumps("framed")])
    member.answer([], [], [(3, len(failed))], *failed)
    assert futures[4].result(0) == "framed"
    assert member.sent[3][2] == one
    member.answer([1], [2])
    assert [each.result(0) for each in futures[1:4]] == [1, 2, 3]
    member.answer([0], [0], of=0)
    assert member.free() == ROOM


@pytest.mark.usefixtures("patient")
def _nobody() -> RpcFuture[Any]:
    return RpcFuture(Way(lambda _, frames: frames, _waiting, _same), "a")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [wire.QUICK_OK],
        [wire.QUICK_OK, b""],
        [wire.QUICK_OK, b"no marshal"],
        [wire.QUICK_OK, Quick(SERIALIZER).dumps(7)],
        [wire.QUICK_OK, Quick(SERIALIZER).dumps(([0], [], []))],
        [wire.QUICK_OK, Quick(SERIALIZER).dumps((["?"], [1], [2]))],
    ],
)
def test_a_reply_that_is_none_fails_all(member: Member, frames: Frames) -> None:
    futures = [member.call(n) for n in range(4)]
    member.batches.flush_all()
    member.sent[1][3].set_result(frames)
    for each in futures[1:]:
        assert isinstance(each.exception(0), Exception)
    assert not futures[0].done()
    member.answer([0], [0], of=0)
    assert member.free() == ROOM


@pytest.mark.usefixtures("patient")
def test_why_there_are_no_results_is_told_to_all(member: Member) -> None:
    futures = [member.call(n) for n in range(3)]
    member.batches.flush_all()
    member.sent[1][3].set_result(
        [wire.header(Status.FAILED, 0, 1, 0, 0, 0, 0.0), member.quick.dumps(5)]
    )
    assert [each.result(0) for each in futures[1:]] == [5, 5]  # decoded as any reply is
    member.sent[0][3].set_exception(PeerLostError("a", "has died"))
    assert isinstance(futures[0].exception(0), PeerLostError)
    assert member.free() == ROOM


@pytest.mark.usefixtures("patient")
def test_each_call_of_a_batch_fails_with_an_error_of_its_own(member: Member) -> None:
    futures = [member.call(n) for n in range(4)]
    member.batches.flush_all()
    member.sent[1][3].set_exception(PeerLostError("a", "has died"))
    errors = [each.exception(0) for each in futures[1:]]
    assert [type(each) for each in errors] == [PeerLostError] * 3
    assert len({id(each) for each in errors}) == 3
    member.sent[0][3].set_exception(PeerLostError("a", "has died"))


@pytest.mark.usefixtures("patient")
def test_what_cannot_be_sent(member: Member) -> None:
    futures = [member.call(n) for n in range(3)]
    member.problem = PeerLostError("a", "has died")
    member.batches.flush_all()
    assert [type(each.exception(0)) for each in futures[1:]] == [PeerLostError] * 2
    member.sent[0][3].set_exception(member.problem)
    with pytest.raises(PeerLostError):
        member.call(3)
    member.problem = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        member.call(4)
    member.problem = None
    for _, _, timer in member.timers._heap.copy():  # it is sent a little later
        if timer._callback is not None:
            timer._callback()
    member.answer([0], [4], of=1)
    assert member.free() == ROOM
    assert all(timer._callback is None for _, _, timer in member.timers._heap)


@pytest.mark.usefixtures("patient")
def test_an_interrupt_while_results_are_taken_loses_none(member: Member) -> None:
    futures = [member.call(n) for n in range(5)]
    member.batches.flush_all()

    def interrupt(_: Future[Any]) -> None:
        raise KeyboardInterrupt

    futures[2].add_done_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        member.answer(range(4), [1, 2, 3, 4], of=1)
    assert [each.result(0) for each in futures[1:]] == [1, 2, 3, 4]
    member.answer([0], [0], of=0)
    assert member.free() == ROOM


@pytest.mark.usefixtures("patient")
def test_the_end_fails_what_has_not_left(member: Member) -> None:
    futures = [member.call(n) for n in range(3)]
    member.batches.refuse()
    assert not member.batches.put("a", None, member.of(first, 0))
    member.problem = ClosedError("the transport")
    member.batches.close()
    member.timers.close()
    assert [type(each.exception(0)) for each in futures[1:]] == [ClosedError] * 2
    member.batches.close()
    member.timers.close()


def test_one_thread_calls_while_another_flushes() -> None:
    member = Member(2**30)
    count = 2000
    stop = threading.Event()

    def work(thread: int) -> list[RpcFuture[Any]]:
        if thread == 2:
            while not stop.is_set():
                member.batches.flush_all()
            return []
        found = [member.call(n, "b") for n in range(count)]
        if thread == 0:
            stop.set()
        return found

    in_threads(3, work)
    until(lambda: not member.batches.held, "something was kept")
    assert sorted(member.numbers()) == sorted([*range(count), *range(count)])
    assert all(member.asked()), "an empty batch was sent"
    member.problem = ClosedError("the transport")
    member.batches.close()
    member.timers.close()
