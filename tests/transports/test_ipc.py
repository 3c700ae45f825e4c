"""The transport between processes of one machine."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import psutil
import pytest
import torch
from exhausted import no_descriptors, no_threads
from ipc_peer import ask, pair
from typing_extensions import override

import pparallel
from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError, ResourceExhaustedError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.links import Hello, ProcessId
from pparallel.runtime.links.dispatcher import READ, Dispatcher
from pparallel.runtime.memory import Arena, Payload
from pparallel.runtime.memory.payload import VERSION
from pparallel.runtime.rpc import RpcGroup, context
from pparallel.testing import TransportSuite
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel_ipc import IpcTransportConfig, messages
from pparallel_ipc.arenas import Arenas
from pparallel_ipc.connection import Connection
from pparallel_ipc.direct import DirectServer, new_pair
from pparallel_ipc.listener import Listener
from pparallel_ipc.messages import PACKET, dumps
from pparallel_ipc.transport import IpcTransport

if TYPE_CHECKING:
    from pparallel.builder import Runtime
    from pparallel.runtime.links.dispatcher import Dispatcher


class TestIpcTransport(TransportSuite):
    @pytest.fixture
    @override
    def config(self) -> IpcTransportConfig:
        return IpcTransportConfig()


# -- direct connections -----------------------------------------------------------------------


def test_more_callers_than_direct_connections() -> None:
    go = threading.Event()

    def wait(_: str, frames: Frames) -> Frames:
        assert go.wait(PATIENCE)
        return frames

    with pair(wait, IpcTransportConfig(lanes=2)) as there:
        threads = [threading.Thread(target=ask, args=(there, b"?")) for _ in range(2)]
        for each in threads:
            each.start()
        until(lambda: len(there.at_b.asked) == 2, "they did not ask")
        assert ask(there, b"?") is None
        go.set()
        for each in threads:
            each.join(PATIENCE)
        assert ask(there, b"?") == [b"?"]


def test_a_direct_connection_is_used_again_and_one_given_up_is_not() -> None:
    held: list[Future[Frames]] = []

    def answer(_: str, frames: Frames) -> Frames | Future[Frames]:
        if bytes(frames[0]) != b"hold":
            return frames
        held.append(Future())
        return held[-1]

    with pair(answer) as there:
        for n in range(2):
            ask(there, b"%d" % n)
        descriptors = psutil.Process().num_fds()
        for n in range(20):
            assert ask(there, b"%d" % n) == [b"%d" % n]
        assert psutil.Process().num_fds() == descriptors
        for n in range(5):
            with pytest.raises(CallTimeoutError):
                ask(there, b"hold", timeout=0.01)
            until(lambda n=n: len(held) == n + 1, "it arrived")  # type: ignore[misc]
            assert ask(there, b"%d" % n) == [b"%d" % n]
        for each in held:
            each.set_result([b"late"])
        until(lambda: psutil.Process().num_fds() <= descriptors, "what was given up is closed")


def test_where_nobody_serves_a_direct_connection_there_is_no_exchange() -> None:
    with pair() as there:
        with no_threads("direct-of-a"):
            for frame in (b"?", os.urandom(100_000)):
                assert ask(there, frame) is None
        assert there.at_b.asked == []
        assert ask(there, b"?") == [b"?"]


def test_a_request_that_was_given_up_before_it_was_read_is_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve, late = IpcTransport._serve_direct, threading.Event()

    def serve_late(self: IpcTransport, name: str, connection: Connection, fds: list[int]) -> None:
        monkeypatch.undo()
        assert late.wait(PATIENCE)
        serve(self, name, connection, fds)

    with pair() as there:
        monkeypatch.setattr(IpcTransport, "_serve_direct", serve_late)
        with pytest.raises(CallTimeoutError):
            ask(there, b"given up", timeout=0.05)
        late.set()
        assert ask(there, b"next") == [b"next"]
        assert len(there.at_b.asked) == 1


def test_what_is_given_up_ends_although_a_forked_child_has_it_too() -> None:
    with pair(lambda _, frames: Future() if bytes(frames[0]) == b"hold" else frames) as there:
        assert ask(there, b"?") == [b"?"]
        server = next(iter(there.b._peers["a"].servers))
        copy = os.dup(there.a._peers["b"].idle[0]._sock.fileno())  # as in a child
        try:
            with pytest.raises(CallTimeoutError):
                ask(there, b"hold", timeout=0.01)
            server.thread.join(PATIENCE)
            assert not server.thread.is_alive()
        finally:
            os.close(copy)


def test_a_caller_sees_that_a_later_reply_has_failed() -> None:
    def answer(_: str, frames: Frames) -> Frames | Future[Frames]:
        if bytes(frames[0]) != b"fail":
            return frames
        failed: Future[Frames] = Future()
        failed.set_exception(LookupError("for a test"))
        return failed

    with pair(answer) as there:
        assert ask(there, b"?") == [b"?"]
        with pytest.raises(PeerLostError, match="has dropped the call"):
            ask(there, b"fail")
        assert ask(there, b"?") == [b"?"]


def test_a_large_frame_that_goes_back_is_the_same_memory() -> None:
    with pair() as there:
        content = os.urandom(1 << 20)
        ask(there, b"first")
        for _ in range(3):
            found = there.a.exchange("b", [b"", bytearray(content)], PATIENCE)
            assert found is not None
            assert bytes(found[0]) == content
            ours, theirs = there.a.arena("a"), there.b.arena("b")
            assert ours is not None
            assert theirs is not None
            assert (ours.usage().blocks, theirs.usage().blocks) == (1, 0)  # it is what came back
            del found


def test_memory_of_requests_and_replies_is_given_back() -> None:
    with pair() as there:
        large = os.urandom(1 << 18)
        for _ in range(20):
            assert ask(there, large) == [large]
            there.a.send("b", [b"", large])
        there.at_b.has(20)
        there.at_b.messages.clear()
        for transport in (there.a, there.b):
            arena = transport.arena(transport.name)
            assert arena is not None
            until(lambda arena=arena: arena.usage().blocks == 0, "blocks are left")  # type: ignore[misc]


# -- ends -------------------------------------------------------------------------------------


def test_a_packet_that_cannot_be_read_ends_the_connection_for_both(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("for a test")

    with pair() as there:
        there.a.send("b", [b"first"])
        there.at_b.has(1)
        monkeypatch.setattr(Payload, "unpack", fail)
        there.a.send("b", [b"", bytearray(b"second")])
        until(lambda: bool(there.at_a.lost and there.at_b.lost), "nobody knows")
        assert there.at_b.lost == [("a", "cannot be served: LookupError: for a test")]
        with pytest.raises(PeerLostError):
            there.a.send("b", [b"third"])
    assert "A connection cannot be served" in caplog.text


def test_the_end_is_reported_after_messages_that_have_not_been_read() -> None:
    with pair() as there:
        there.at_b.gate.clear()
        for n in range(200):
            there.a.send("b", [b"%d" % n])
        until(lambda: there.at_b.thread != 0, "nothing is read")
        there.b._membership.lose("a", "has died")
        there.at_b.gate.set()
        until(lambda: bool(there.at_b.lost), "its end is not reported")
        assert [int(bytes(frames[0])) for _, frames in there.at_b.messages] == [*range(200)]


def test_memory_of_a_request_that_was_given_up_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pair() as there:
        assert ask(there, b"?") == [b"?"]
        monkeypatch.setattr(DirectServer, "_is_given_up", lambda self: True)
        with pytest.raises((CallTimeoutError, PeerLostError)):
            ask(there, bytes(1 << 20), timeout=1e-9)
        arena = there.a.arena("a")
        assert arena is not None
        until(lambda: arena.usage().blocks == 0, "its block is not given back")
        assert len(there.at_b.asked) == 1


def test_a_message_leaves_after_those_that_wait_for_room() -> None:
    with pair() as there:
        there.at_a.gate.clear()
        there.b.send("a", [b"busy"])  # a's dispatcher sends nothing from now on
        until(lambda: there.at_a.thread != 0, "nothing is read")
        there.at_b.gate.clear()
        peer, sent = there.a._peers["b"], 0
        assert peer.connection is not None
        while peer.connection.is_empty():
            there.a.send("b", [b"%d" % sent, bytes(20_000)])
            sent += 1
        there.at_b.gate.set()
        there.at_b.has(sent - 1)  # there is room now
        there.a.send("b", [b"%d" % sent])
        there.at_a.gate.set()
        assert [int(frames[0]) for frames in there.at_b.has(sent + 1)] == [*range(sent + 1)]


def test_messages_that_wait_for_room_leave_when_there_is_some() -> None:
    with pair() as there:
        there.at_b.gate.clear()
        peer, sent = there.a._peers["b"], 0
        assert peer.connection is not None
        while peer.connection.is_empty():
            there.a.send("b", [b"%d" % sent, bytes(20_000)])
            sent += 1
        there.at_b.gate.set()  # and nothing is sent from now on
        assert [int(frames[0]) for frames in there.at_b.has(sent)] == [*range(sent)]


class InterruptedQueue(deque[Any]):
    """One whose first addition a signal's handler interrupts."""

    @override
    def append(self, item: Any, /) -> None:
        super().append(item)
        if not self.__dict__:
            self.was_interrupted = True
            raise KeyboardInterrupt


def test_messages_leave_after_one_that_was_interrupted_in_the_queue() -> None:
    with pair() as there:
        connection = there.a._peers["b"].connection
        assert connection is not None
        connection._waiting = InterruptedQueue()
        with pytest.raises(KeyboardInterrupt):  # the first takes a descriptor along, and waits
            there.a.exchange("b", [b"?"], PATIENCE)
        there.a.send("b", [b"next"])
        assert there.at_b.has(1) == [[b"next"]]


def test_memory_of_a_request_that_a_dead_member_has_not_read_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads, dead = threading.Event(), threading.Event()

    def read_nothing(*_: object) -> None:
        reads.set()
        dead.wait(PATIENCE)

    with pair() as there:
        assert ask(there, b"?") == [b"?"]
        monkeypatch.setattr(DirectServer, "_answer", read_nothing)
        asking: Future[Any] = Future()

        def ask_large() -> None:
            try:
                asking.set_result(ask(there, bytes(1 << 20)))
            except PeerLostError as error:
                asking.set_exception(error)

        threading.Thread(target=ask_large).start()
        assert reads.wait(PATIENCE)
        there.a._membership.lose("b", "has died")
        with pytest.raises(PeerLostError, match="has died"):
            asking.result(PATIENCE)
        arena = there.a.arena("a")
        assert arena is not None
        assert arena.usage().blocks == 0
        dead.set()


def test_memory_of_a_message_that_does_not_leave_is_given_back() -> None:
    class Full:
        def send(self, *_: object) -> int:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    with pair() as there:
        arena, connection = there.a.arena("a"), there.a._peers["b"].connection
        assert arena is not None
        assert connection is not None
        sock, connection.sock = connection.sock, Full()  # type: ignore[assignment]
        with pytest.raises(ResourceExhaustedError):
            there.a.send("b", [b"", bytes(1 << 20)])
        assert arena.usage().blocks == 0
        connection.sock, connection._is_dead = sock, True  # its end is not known yet
        there.a.send("b", [b"", bytes(1 << 20)])
        assert arena.usage().blocks == 0
        connection._is_dead = False
        there.a.send("b", [b"next"])
        assert there.at_b.has(1) == [[b"next"]]


def test_memory_that_a_dead_member_has_not_read_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(_: object) -> None:
        raise BlockingIOError

    with pair() as there:
        arena = there.a.arena("a")
        assert arena is not None
        there.at_b.gate.clear()
        there.a.send("b", [b"first"])
        until(lambda: there.at_b.thread != 0, "nothing is read")
        there.a.send("b", [b"", bytes(1 << 20)])
        assert arena.usage().blocks == 1
        there.a._membership.lose("b", "has died")
        until(lambda: arena.usage().blocks == 0, "its block is not given back")
        monkeypatch.setattr(messages, "receive", nothing)  # it is dead, and reads no more
        there.at_b.gate.set()


def test_a_member_that_is_closed_reports_no_other_lost() -> None:
    with pair() as there:
        there.a.close()
        until(lambda: bool(there.at_b.lost), "its end is not reported")
        there.a._report_lost("b", "has died")  # as seen at that moment
        assert not there.at_a.lost


def test_a_forked_childs_copy_is_closed() -> None:
    with pair() as there:
        child = os.fork()
        if not child:
            ended = 1
            try:
                with pytest.raises(ClosedError, match="of which this one is a fork"):
                    there.a.send("b", [b"?"])
                there.a.close()
                ended = 7
            finally:
                os._exit(ended)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert ask(there, b"?") == [b"?"]


# -- descriptors and threads that run out -------------------------------------------------------


def fail_next(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException, times: int = 1
) -> Callable[[], bool]:
    """Have the next calls of a function by this backend fail; return what says whether they did."""
    original, left = getattr(owner, name), list(range(times))

    def call(*args: Any, **kwargs: Any) -> Any:
        file = sys._getframe(1).f_code.co_filename
        if left and ("pparallel_ipc" in file or "links/dispatcher" in file):
            left.pop()
            raise error
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return lambda: not left


NONE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_message_fails_that_finds_no_descriptor_to_connect_and_the_member_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pair() as there:
        peer = there.a._peers["b"]
        peer.connection, met = None, peer.connection  # as of members that have not met
        for _ in range(2):
            has_failed = fail_next(monkeypatch, socket, "socket", NONE)
            with pytest.raises(ResourceExhaustedError, match="the connection to member 'b'"):
                there.a.send("b", [b"none"])
            assert has_failed()
            monkeypatch.undo()
        assert there.a.members() == ["a", "b"]
        there.a.send("b", [b"first"])
        assert there.at_b.has(1) == [[b"first"]]
        assert peer.connection is not met


def call_without_room(rt: Runtime) -> None:
    group, large = rt.group(), 1 << 20
    group.barrier(PATIENCE)
    calls: list[tuple[Any, ...]] = [
        (len, (bytes(large),)),
        (bytes, (large,)),
        (reply_later, (large,)),
    ]
    for each in calls if rt.rank == 0 else ():
        for call in (group.rpc_sync, lambda *args: group.rpc_async(*args).wait(PATIENCE)):
            with pytest.raises(ResourceExhaustedError, match="its budget is 524288 bytes"):
                call(1, *each)
            assert group.rpc_sync(1, add, args=(1, 2)) == 3
    group.barrier(PATIENCE)


def reply_later(size: int) -> Future[bytes]:
    later: Future[bytes] = Future()
    threading.Timer(0.01, later.set_result, [bytes(size)]).start()
    return later


def test_a_message_that_cannot_be_packed_loses_no_member() -> None:
    transport = {"backend": "ipc", "arena_budget": 1 << 19}
    job = {"members": 2, "transport": transport, "reducer": {"backend": "local"}}
    pparallel.launch(job, call_without_room)


def test_a_member_without_descriptors_is_reached_later() -> None:
    with pair() as there:
        with no_descriptors():
            assert ask(there, b"?") is None
            there.a.send("b", [b"first"])
            assert there.at_b.has(1) == [[b"first"]]
        assert ask(there, b"?") == [b"?"]


def exhaust() -> None:
    """Leave this member no descriptor until :func:`relax` is called."""
    EXHAUSTED.enter_context(no_descriptors())


def relax() -> None:
    EXHAUSTED.close()


def meet_others() -> int:
    """Return when all callers have come, each by a way of its own."""
    return TOGETHER.wait(PATIENCE)


EXHAUSTED, TOGETHER = ExitStack(), threading.Barrier(4)


def call_one_that_is_exhausted(rt: Runtime) -> list[int]:
    group = rt.group()
    found: list[int] = []
    if rt.rank == 0:
        group.rpc_sync(1, exhaust)
        in_threads(TOGETHER.parties, lambda _: found.append(group.rpc_sync(1, meet_others)))
        group.rpc_sync(1, relax)
    group.barrier(PATIENCE)
    return sorted(found)


def test_a_member_without_descriptors_is_called_by_messages() -> None:
    job = {"members": 2, "launcher": {"backend": "process"}, "reducer": {"backend": "local"}}
    assert pparallel.launch(job, call_one_that_is_exhausted) == [[0, 1, 2, 3], []]


def test_a_member_without_descriptors_lets_others_in_later_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_failed = fail_next(monkeypatch, socket.socket, "accept", NONE, 3)
    with pair() as there:
        there.b.send("a", [b"first"])
        assert there.at_a.has(1) == [[b"first"]]
        assert has_failed()
    assert caplog.text.count("cannot let members in") == 1


@pytest.mark.parametrize(
    ("error", "why"),
    [(ValueError("this is no arena"), "this is no arena"), (NONE, "Too many open files")],
)
def test_a_member_whose_arena_cannot_be_attached_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, why: str
) -> None:
    before = psutil.Process().num_fds()
    fail_next(monkeypatch, Arena, "attach", error, 2)
    with pytest.raises(PeerLostError, match=why), pair():
        raise AssertionError("they have met")
    assert "Bad file descriptor" not in caplog.text  # it may be another's by then
    assert psutil.Process().num_fds() == before


def test_a_member_that_can_have_no_shared_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    before = psutil.Process().num_fds()
    fail_next(monkeypatch, Arena, "create", NONE, 2)
    with pytest.raises(OSError, match="Too many open files"), pair():
        raise AssertionError("they have met")
    until(lambda: psutil.Process().num_fds() == before, "a descriptor is left")


class FakeDispatcher:
    """Keeps what it is asked to call."""

    def __init__(self) -> None:
        self.acts: list[Callable[[], object]] = []

    def call(self, act: Callable[[], object]) -> None:
        self.acts.append(act)

    def call_later(self, _: float, act: Callable[[], object]) -> None:
        self.acts.append(act)

    def goes_on(self) -> bool:
        """Call that; return whether there is more."""
        acts, self.acts = self.acts, []
        for act in acts:
            act()
        return bool(self.acts)


def test_memory_that_is_idle_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now, dispatcher = [time.monotonic()], FakeDispatcher()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    arenas = Arenas(1 << 24, "idle")
    arenas.open(cast("Dispatcher", dispatcher))
    arena = arenas.of("a", own=True)
    assert arena is not None
    assert not dispatcher.acts
    memory = arena.allocate(1 << 20)
    assert dispatcher.goes_on()
    arena.allocate(1 << 20)
    assert len(dispatcher.acts) == 1
    del memory
    for left in (1 << 21, 0):
        now[0] += 1.0
        assert (dispatcher.goes_on(), arena.usage().free) == (left > 0, left)
    assert arena.allocate(1) is not None
    assert dispatcher.goes_on()
    arenas.close()


def test_the_end_of_a_connection_is_reported_without_a_descriptor_to_look_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pair() as there:
        has_failed = fail_next(monkeypatch, ProcessId, "ends_within", NONE)
        for connection in list(there.b._peers["a"].connections):
            connection.sock.shutdown(socket.SHUT_RDWR)
        until(lambda: bool(there.at_b.lost), "its end is not reported")
        assert has_failed()


def test_a_dispatcher_that_cannot_be_made_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = psutil.Process().num_fds()
    fail_next(monkeypatch, os, "eventfd", NONE)
    config = IpcTransportConfig(rendezvous_timeout=0.5)  # the other member waits in vain
    with pytest.raises(OSError, match="Too many open files"), pair(config=config):
        raise AssertionError("it is there")
    until(lambda: psutil.Process().num_fds() == before, "a descriptor is left")


# -- processes --------------------------------------------------------------------------------


def test_what_is_sent_as_soon_as_the_first_member_is_open_makes_no_second_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accept = IpcTransport._accepted

    def late(transport: IpcTransport, *args: Any) -> None:
        threading.Event().wait(0.1)  # the other one is admitted, and cannot be sent to yet
        accept(transport, *args)

    def send(transport: IpcTransport) -> None:
        if transport.name == "a":
            transport.send("b", [b"first"])

    monkeypatch.setattr(IpcTransport, "_accepted", late)
    with pair(opened=send) as there:
        there.at_b.has(1)
        assert len(there.a._peers["b"].connections) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_end_of_the_thread_that_receives_ends_all_members() -> None:
    def end() -> None:
        raise SystemExit

    with pair() as there:
        assert there.a._dispatcher is not None
        there.a._dispatcher.call(end)
        until(lambda: [name for name, _ in there.at_a.lost] == ["b"], "nobody is reported")
        with pytest.raises(PeerLostError, match="the thread that receives has ended"):
            there.a.send("b", [b"?"])


def add(a: int, b: int) -> int:
    return a + b


def ask_own_member(me: int) -> list[int]:
    """Call the member in which this runs, while it runs."""
    endpoint = context.endpoint()
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


def same(data: torch.Tensor) -> torch.Tensor:
    return data


def memory_here() -> int:
    """Return the bytes of shared memory that the member in which this runs has taken."""
    arena = context.endpoint().arena()
    assert arena is not None
    used = arena.usage()
    return used.leased + used.free


def send_and_take_back(rt: Runtime) -> list[int]:
    group = rt.group()
    found = []
    if rt.rank == 0:
        data = torch.ones(1 << 20)
        for call in (
            group.rpc_sync,
            lambda *args, **kwargs: group.rpc_async(*args, **kwargs).wait(),
        ):
            assert len(call(1, same, args=(data,))) == len(data)
            found.append(group.rpc_sync(1, memory_here))
    group.barrier(PATIENCE)
    return found


def test_a_large_result_to_which_nothing_else_refers_goes_back_in_the_memory_of_the_call() -> None:
    job = {"members": 2, "transport": {"backend": "ipc"}, "reducer": {"backend": "local"}}
    assert pparallel.launch(job, send_and_take_back)[0] == [0, 0]


def test_memory_of_a_reply_that_nobody_has_read_is_given_back() -> None:
    class Receiver:
        def on_exchange(self, *_: object) -> list[bytes]:
            return [bytes(2**20)]

    arena, ended = Arena.create(), threading.Event()
    ours, theirs = new_pair()
    server = DirectServer(
        theirs,
        "m0",
        Receiver(),  # type: ignore[arg-type] # it needs no more
        Payload([arena], 0),
        lambda _: ended.set(),
    )
    server.thread.start()
    ours.setblocking(True)
    with ours:
        assert ours.recv(PACKET) == b"S"
        ours.send(dumps(((), None), VERSION))
        ours.recv(PACKET, socket.MSG_PEEK)
        assert arena.usage().leased
    assert ended.wait(PATIENCE)
    arena.trim()
    assert not arena.usage().leased
    arena.close()


def test_what_the_dispatcher_is_to_call_is_called_after_its_end_too() -> None:
    it, called = Dispatcher("m0", lambda: None), list[int]()
    it.start()
    it.close()
    it.call(lambda: called.append(1))
    assert called == [1]


def test_nobody_is_accepted_for_a_moment_where_there_is_no_descriptor(tmp_path: Path) -> None:
    class Watched:
        masks: ClassVar[list[int]] = []
        later: ClassVar[list[Any]] = []

        def watch(self, _: int, mask: int) -> None:
            self.masks.append(mask)

        def call_later(self, seconds: float, act: Any) -> None:
            assert seconds > 0
            self.later.append(act)

    class Full:
        def fileno(self) -> int:
            return 0

        def accept(self) -> None:
            raise OSError(24, "Too many open files")

    none: Any = None
    watched: Any = Watched()
    it = Listener(tmp_path / "0", watched, Hello("m0", b"", none, ""), b"", none, -1, none)
    it._sock = Full()  # type: ignore[assignment] # it needs no more
    it._accept(0)
    assert watched.masks == [0]
    watched.later.pop()()
    assert watched.masks == [0, READ]
