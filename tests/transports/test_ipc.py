"""The transport between processes of one machine."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import socket
import threading
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from ipc_peer import echo, pair
from typing_extensions import override

import pparallel
from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    PeerLostError,
    RemoteError,
    ResourceExhaustedError,
)
from pparallel.interfaces.transport import Frames
from pparallel.runtime import dedicated
from pparallel.runtime.processes.inheritance import _private
from pparallel.runtime.rpc import RpcGroup, current
from pparallel.testing import TransportSuite
from pparallel.testing.patience import PATIENCE, until
from pparallel_ipc import IpcTransportConfig, messages
from pparallel_ipc.guest import Guest
from pparallel_ipc.lanes import Lane, new_pair
from pparallel_ipc.transport import IpcTransport

if TYPE_CHECKING:
    from pparallel.builder import Runtime


class TestIpcTransport(TransportSuite):
    @pytest.fixture
    @override
    def config(self) -> IpcTransportConfig:
        return IpcTransportConfig()


def test_without_shared_memory_what_is_large_is_refused_and_all_else_passes() -> None:
    def grow(sender: str, frames: Frames) -> Frames:
        return [bytes(frames[0]) * 1000]

    with pair(grow, IpcTransportConfig(arena_budget=1)) as (a, b):
        with pytest.raises(ResourceExhaustedError, match="its budget is 1 bytes"):
            a.call(b.name, [b"x" * 100_000], PATIENCE)
        with pytest.raises(RemoteError, match="its budget is 1 bytes"):
            a.call(b.name, [b"x" * 100], PATIENCE)
        assert copied(a.call(b.name, [b"x"], PATIENCE)) == [b"x" * 1000]


def copied(frames: Frames) -> list[bytes]:
    return [bytes(each) for each in frames]


# -- lanes ------------------------------------------------------------------------------------


def test_more_callers_than_lanes() -> None:
    arrived, go = [], threading.Event()

    def wait(sender: str, frames: Frames) -> Frames | Future[Frames]:
        if bytes(frames[0]) == b"first":
            return frames
        arrived.append(dedicated.kind())
        assert dedicated.kind() != dedicated.ALONE or go.wait(PATIENCE)
        return frames

    with pair(wait, IpcTransportConfig(lanes=2)) as (a, b):
        a.call(b.name, [b"first"], PATIENCE)  # from now on there are lanes
        with in_background(5, lambda n: a.call(b.name, [bytes([n])], PATIENCE)) as results:
            until(lambda: len(arrived) == 5, "all arrived")
            assert sorted(arrived) == [dedicated.ALONE] * 2 + [dedicated.LEADING] * 3
            go.set()
        assert sorted(copied(each)[0] for each in results) == [bytes([n]) for n in range(5)]


@contextlib.contextmanager
def in_background(count: int, work: Callable[[int], Any]) -> Iterator[list[Any]]:
    """Run *work* in threads, which have ended afterwards; yield what they return."""
    results: list[Any] = []
    threads = [threading.Thread(target=lambda n=n: results.append(work(n))) for n in range(count)]
    for each in threads:
        each.start()
    yield results
    for each in threads:
        each.join(PATIENCE)
    assert not any(each.is_alive() for each in threads)


def test_a_lane_is_used_again_and_one_given_up_is_not() -> None:
    held: list[Future[Frames]] = []

    def handle(sender: str, frames: Frames) -> Frames | Future[Frames]:
        if bytes(frames[0]) != b"hold":
            return frames
        held.append(Future())
        return held[-1]

    with pair(handle) as (a, b):
        a.call(b.name, [b"first"], PATIENCE)
        a.call(b.name, [b"second"], PATIENCE)
        descriptors = psutil.Process().num_fds()
        for n in range(20):
            assert copied(a.call(b.name, [b"%d" % n], PATIENCE)) == [b"%d" % n]
        assert psutil.Process().num_fds() == descriptors
        for n in range(5):
            with pytest.raises(TimeoutError):
                a.call(b.name, [b"hold"], 0.01)
            until(lambda n=n: len(held) == n + 1, "it arrived")  # type: ignore[misc]
            assert copied(a.call(b.name, [b"%d" % n], PATIENCE)) == [b"%d" % n]
        for each in held:
            each.set_result([b"late"])
        until(lambda: psutil.Process().num_fds() <= descriptors, "lanes given up are closed")


def no_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    receive: Any = socket.socket.recvmsg

    def receive_none(sock: socket.socket, *args: Any) -> Any:
        data, ancillary, flags, address = receive(sock, *args)
        for _, _, each in ancillary:
            messages.close(array("i", each))  # as the kernel does when there is no room for them
        return data, [], flags | socket.MSG_CTRUNC, address

    monkeypatch.setattr(socket.socket, "recvmsg", receive_none, raising=False)


def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def start_none(self: threading.Thread) -> None:
        if self.name == "lane-of-a":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_none)


@pytest.mark.parametrize(
    ("without", "why"),
    [(no_descriptors, "has no descriptors left"), (no_threads, "no more threads can be had")],
)
def test_a_call_whose_lane_is_not_served_takes_the_connection(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    without: Callable[[pytest.MonkeyPatch], None],
    why: str,
) -> None:
    with pair(echo) as (a, b):
        a.request(b.name, [b"first"], PATIENCE).result(PATIENCE)  # which takes no lane
        with monkeypatch.context() as changed:
            without(changed)
            assert copied(a.call(b.name, [b"second"], PATIENCE)) == [b"second"]
            large = os.urandom(100_000)
            assert copied(a.call(b.name, [large], PATIENCE)) == [large]
        assert re.search(f"b has no lane for a call of a: .*{why}", caplog.text)
        assert copied(a.call(b.name, [b"third"], PATIENCE)) == [b"third"]


def test_what_cannot_be_served_ends_the_connection(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Guest, entries: Any) -> None:
        raise LookupError("for a test")

    with pair(echo) as (a, b):
        future = a.request(b.name, [b"first"], None)
        assert copied(future.result(PATIENCE)) == [b"first"]
        monkeypatch.setattr(Guest, "take", fail)
        future = a.request(b.name, [b"second"], None)
        with pytest.raises(PeerLostError, match="member 'b' has closed the connection"):
            future.result(PATIENCE)
        with pytest.raises(PeerLostError, match="member 'a' cannot be served: LookupError"):
            b.request(a.name, [b"third"], None).result(PATIENCE)
        assert "A connection could not be served" in caplog.text


# -- functions on the thread that receives -----------------------------------------------------


def test_what_blocks_holds_nobody_up() -> None:
    go = threading.Event()

    def handle(sender: str, frames: Frames) -> Frames:
        if bytes(frames[0]) == b"block":
            assert go.wait(PATIENCE)
        return frames

    with pair(handle) as (a, b):
        blocked = [a.request(b.name, [b"block"], PATIENCE) for _ in range(3)]
        for n in range(5):
            assert copied(a.request(b.name, [b"%d" % n], PATIENCE).result()) == [b"%d" % n]
        assert not any(each.done() for each in blocked)
        go.set()
        assert [copied(each.result(PATIENCE)) for each in blocked] == [[b"block"]] * 3


def test_the_role_is_passed_on_before_a_function_waits_for_others() -> None:
    kinds: list[int] = []

    def handle(sender: str, frames: Frames) -> Frames:
        if bytes(frames[0]) == b"ask":
            kinds.append(dedicated.kind())
            dedicated.about_to_block()
            kinds.append(dedicated.kind())
            return b_of[0].request("a", [b"?"], PATIENCE).result()  # the hub has to receive it
        return frames

    with pair(handle) as (a, b):
        b_of = [b]
        assert copied(a.request(b.name, [b"ask"], PATIENCE).result()) == [b"?"]
    assert kinds == [dedicated.LEADING, dedicated.ALONE]


# -- processes --------------------------------------------------------------------------------


def add(a: int, b: int) -> int:
    return a + b


def fork_and_call(rt: Runtime) -> int:
    """Have a child that was forked in the midst of the job try a call; return how it ends."""
    group = rt.group()
    result = group.rpc_sync(1 - rt.rank, add, args=(1, 2))
    assert result == 3
    child = os.fork()
    if not child:
        code = 1
        try:
            group.rpc_sync(1 - rt.rank, add, args=(1, 2))
        except ClosedError:
            code = 7
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert group.rpc_sync(1 - rt.rank, add, args=(2, 2)) == 4
    group.barrier(PATIENCE)
    return os.waitstatus_to_exitcode(status)


def test_a_member_may_fork() -> None:
    job = {"members": 2, "launcher": {"backend": "process"}, "reducer": {"backend": "local"}}
    assert pparallel.launch(job, fork_and_call) == [7, 7]


def ask_own_member(me: int) -> list[int]:
    """Call the member in which this runs, while it runs."""
    endpoint = current.endpoint()
    group = RpcGroup(endpoint, "world", endpoint.member.names)
    futures = [group.rpc_async(me, add, args=(n, 1)) for n in range(3)]
    return [group.rpc_sync(me, add, args=(9, 1)), *(each.wait(PATIENCE) for each in futures)]


def ask_others_to(rt: Runtime) -> list[list[int]]:
    group = rt.group()
    group.barrier(PATIENCE)
    there = 1 - rt.rank
    found = [group.rpc_sync(there, ask_own_member, args=(there,)) for _ in range(3)]
    found += [group.rpc_async(there, ask_own_member, args=(there,)).wait() for _ in range(3)]
    group.barrier(PATIENCE)
    return found


@pytest.mark.parametrize("transport", ["ipc", "zmq"])
def test_a_function_calls_the_member_that_it_runs_in(transport: str) -> None:
    job = {"members": 2, "transport": {"backend": transport}, "reducer": {"backend": "local"}}
    assert pparallel.launch(job, ask_others_to) == [[[10, 1, 2, 3]] * 6] * 2


def test_no_call_that_was_given_up_in_a_lane_enters_after_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Be the lane taken in only after the call in it was given up, and others have come."""
    add_lane, late = Guest.add_lane, [threading.Event(), threading.Event()]

    def take_in_late(self: Guest, fds: Any) -> None:
        def take_in() -> None:
            assert late[0].wait(PATIENCE)
            add_lane(self, fds)
            late[1].set()

        monkeypatch.undo()
        threading.Thread(target=take_in).start()

    entered: list[bytes] = []

    def enter(_: str, frames: Frames) -> Frames:
        entered.extend(copied(frames))
        return frames

    with pair(enter) as (a, b):
        a.request(b.name, [b"first"], PATIENCE).result(PATIENCE)  # which takes no lane
        monkeypatch.setattr(Guest, "add_lane", take_in_late)
        with pytest.raises(CallTimeoutError):
            a.call(b.name, [b"given up"], 0.05)
        for each in (b"second", b"third"):
            a.call(b.name, [each], PATIENCE)
        late[0].set()
        assert late[1].wait(PATIENCE), "the lane was taken in at once"
        a.call(b.name, [b"fourth"], PATIENCE)
    entered.remove(b"first")
    assert entered in (
        [b"second", b"third", b"fourth"],
        [b"given up", b"second", b"third", b"fourth"],
    )


def test_a_large_frame_that_goes_back_is_the_same_memory() -> None:
    with pair(echo) as (a, b):
        content = os.urandom(1 << 20)
        a.call(b.name, [b"first"], PATIENCE)
        for _ in range(3):
            (back,) = a.call(b.name, [bytearray(content)], PATIENCE)
            assert bytes(back) == content
            usage = a._station and a._station._arenas._own and a._station._arenas._own.usage()
            assert usage
            assert usage.blocks == 1  # what was sent is what came back
            theirs = b._station and b._station._arenas._own and b._station._arenas._own.usage()
            assert theirs
            assert theirs.blocks == 0
            del back


def test_an_answer_that_came_before_a_reset_is_there_still() -> None:
    *ours, theirs = new_pair()
    lane = Lane(*ours)

    def answer_without_reading() -> None:
        select.select([theirs], [], [])
        theirs.send(b"the answer")
        theirs.close()  # with the request unread: the other end hears of a reset

    thread = threading.Thread(target=answer_without_reading)
    thread.start()
    assert lane.exchange(b"a request", PATIENCE) == b"the answer"
    thread.join()
    lane.close()


def test_an_answer_is_read_before_its_lane_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    unpack, ended = messages.unpack, threading.Event()
    monkeypatch.setattr("pparallel_ipc.line._KEPT", 0)
    close = Lane.close

    def closed(lane: Lane) -> None:
        close(lane)
        ended.set()

    def late(*args: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            assert not ended.wait(0.2)  # the other end then takes back what it has answered
        return unpack(*args)

    monkeypatch.setattr(Lane, "close", closed)
    monkeypatch.setattr(messages, "unpack", late)
    with pair(echo) as (a, b):
        large = os.urandom(100_000)
        assert bytes(a.call(b.name, [large], PATIENCE)[0]) == large


def test_an_answer_that_has_left_is_read_though_its_sender_has_closed() -> None:
    answers: list[Future[Frames]] = [Future(), Future()]
    unasked, left, large = answers[::-1], threading.Event(), os.urandom(100_000)
    with pair(lambda _, __: unasked.pop()) as (a, b):
        first, second = (a.request(b.name, [b"x"], PATIENCE) for _ in answers)
        first.add_done_callback(lambda _: left.wait(PATIENCE))  # the thread that receives
        until(lambda: not unasked, "both have come")
        answers[0].set_result([b"x"])
        answers[1].set_result([large])
        b.close()
        left.set()
        assert copied(second.result(PATIENCE)) == [large]


def test_an_answer_that_was_taken_back_is_of_a_lost_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exchange = Lane.exchange

    def last(lane: Lane, *args: Any) -> Any:
        answer = exchange(lane, *args)
        for each in threading.enumerate():
            if each.name == "lane-of-a":
                each._target.__self__.end()  # type: ignore[attr-defined]
                each.join(PATIENCE)
        return answer

    with pair(echo) as (a, b):
        assert a.name == "a"
        assert a.call(b.name, [b"x"], PATIENCE)  # they have met
        monkeypatch.setattr(Lane, "exchange", last)
        with pytest.raises(PeerLostError, match="has dropped the call"):
            a.call(b.name, [os.urandom(100_000)], PATIENCE)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_lane_that_lacks_its_second_descriptor_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: socket.socket) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = set(_private.descriptors)
    with pair(echo) as (a, b):
        monkeypatch.setattr(socket.socket, "dup", fail)
        assert bytes(a.call(b.name, [b"x"], PATIENCE)[0]) == b"x"  # Python closes the pair
        monkeypatch.undo()
        kept = _private.descriptors - before
        assert all(os.path.exists(f"/proc/self/fd/{each}") for each in kept)


# -- who has gone -----------------------------------------------------------------------------


def leased(member: IpcTransport) -> int:
    """Return how many blocks of its arena somebody holds."""
    arena = member.arena(member.name)
    assert arena is not None
    return arena.usage().blocks


def test_an_answer_of_a_call_is_read_though_its_sender_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large, exchange = os.urandom(100_000), Lane.exchange

    def late(lane: Lane, *args: Any) -> Any:
        answer = exchange(lane, *args)
        assert b._station
        b._station._guests[a.name]._answerer.keeps = True  # as it closes, in time
        b.close()
        until(lambda: a.members() == [a.name], "the end was heard")
        until(lambda: a.arena(b.name) is None, "the sender was forgotten")
        return answer

    with pair(lambda _, __: [large]) as (a, b):
        a.call(b.name, [b"x"], PATIENCE)
        monkeypatch.setattr(Lane, "exchange", late)
        assert copied(a.call(b.name, [b"x"], PATIENCE)) == [large]


@pytest.mark.parametrize("back", [False, True])
def test_what_is_answered_after_its_caller_has_gone_is_let_go(
    monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    """Be it in the memory of the member that answers or, as it came, in that of its caller."""
    come, go, answered = threading.Event(), threading.Event(), threading.Event()
    put = Guest._put

    def put_and_tell(self: Guest, *args: Any) -> None:
        put(self, *args)
        answered.set()

    monkeypatch.setattr(Guest, "_put", put_and_tell)

    def handle(_: str, frames: Frames) -> Frames:
        come.set()
        assert go.wait(PATIENCE)
        return frames if back else [os.urandom(100_000)]

    with pair(handle) as (a, b):
        a.request(b.name, [bytearray(100_000)], None)
        assert come.wait(PATIENCE)
        b._member_ended(a.name, "is lost, for a test")
        go.set()
        assert answered.wait(PATIENCE)
        until(lambda: leased(a) == leased(b) == 0, "all is let go")


def test_a_request_that_was_given_up_as_its_peer_ended_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(lane: Lane, *_: Any) -> Any:
        a._member_ended(b.name, "is lost, for a test")
        raise TimeoutError

    with pair(echo) as (a, b):
        a.call(b.name, [b"x"], PATIENCE)
        monkeypatch.setattr(Lane, "exchange", late)
        with pytest.raises(CallTimeoutError):
            a.call(b.name, [os.urandom(100_000)], PATIENCE)
        assert leased(a) == 0


# -- errors -----------------------------------------------------------------------------------


def in_a_lane(asks: IpcTransport) -> Frames:
    return asks.call("b", [os.urandom(100_000)], PATIENCE)


def by_the_connection(asks: IpcTransport) -> Frames:
    return asks.request("b", [os.urandom(100_000)], PATIENCE).result(PATIENCE)


@pytest.mark.parametrize("ask", [in_a_lane, by_the_connection])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("taken back"), "member 'b' has dropped the call; its log says why"),
        (RecursionError("too deep"), "too deep"),
    ],
)
def test_an_answer_that_cannot_be_unpacked(
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[IpcTransport], Frames],
    error: Exception,
    told: str,
) -> None:
    unpack = messages.unpack

    def fail(packed: Any, payload: Any) -> Any:
        if payload is a._lines["b"].payload:
            raise error
        return unpack(packed, payload)

    with pair(echo) as (a, b):
        a.call(b.name, [b"x"], PATIENCE)
        with monkeypatch.context() as changed:
            changed.setattr(messages, "unpack", fail)
            expected = RecursionError if told == "too deep" else PeerLostError
            with pytest.raises(expected, match=told):
                ask(a)
        assert copied(a.call(b.name, [b"x"], PATIENCE)) == [b"x"]


def test_a_request_that_cannot_be_packed_loses_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RecursionError("too deep")

    with pair(echo) as (a, b):
        a.call(b.name, [b"x"], PATIENCE)
        monkeypatch.setattr(messages, "pack", fail)
        with pytest.raises(RecursionError, match="too deep"):
            in_a_lane(a)


def test_an_answer_of_a_member_that_closes_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[Future[Frames]] = []

    def handle(_: str, __: Frames) -> Future[Frames]:
        asked.append(Future())
        return asked[-1]

    with pair(handle) as (a, b):
        a.request(b.name, [b"x"], None)
        until(lambda: len(asked) == 1, "it has come")
        b.close()
        with caplog.at_level("DEBUG", "pparallel_ipc.lanes"):
            asked[0].set_result([os.urandom(100_000)])
    (record,) = (each for each in caplog.records if "A request of a" in each.message)
    assert (record.levelname, record.exc_info) == ("DEBUG", None)
