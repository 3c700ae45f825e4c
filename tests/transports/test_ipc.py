"""The transport between processes of one machine."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from exhausted import no_threads
from member_pairs import Pair, ask, ask_in_thread, exchange, pair
from typing_extensions import override

import pparallel
from pparallel.errors import CallTimeoutError, PeerLostError, ResourceExhaustedError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.links import ProcessId
from pparallel.runtime.memory import Arena, Payload
from pparallel.runtime.rpc import context
from pparallel.testing import TransportSuite
from pparallel.testing.patience import PATIENCE, until
from pparallel_ipc import IpcTransportConfig, arenas, messages
from pparallel_ipc.connection import Connection
from pparallel_ipc.direct import DirectServer
from pparallel_ipc.transport import IpcTransport

if TYPE_CHECKING:
    from pparallel.builder import Runtime

CONFIG = IpcTransportConfig()
LARGE = 1 << 20  #: bytes that travel in shared memory


class TestIpcTransport(TransportSuite):
    @pytest.fixture
    @override
    def config(self) -> IpcTransportConfig:
        return CONFIG


# -- direct connections -----------------------------------------------------------------------


def test_a_direct_connection_is_used_again_and_one_given_up_is_not() -> None:
    held: list[Future[Frames]] = []

    def answer(frames: Frames) -> Frames | Future[Frames]:
        if bytes(frames[0]) != b"hold":
            return frames
        held.append(Future())
        return held[-1]

    with pair(CONFIG) as there:
        there.at_b.answer = answer
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
    with pair(CONFIG) as there:
        with no_threads("direct-of-a"):
            for frame in (b"?", os.urandom(100_000)):
                assert exchange(there, frame) is None
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

    with pair(CONFIG) as there:
        monkeypatch.setattr(IpcTransport, "_serve_direct", serve_late)
        with pytest.raises(CallTimeoutError):
            ask(there, b"given up", timeout=0.05)
        late.set()
        assert ask(there, b"next") == [b"next"]
        assert len(there.at_b.asked) == 1


def test_what_is_given_up_ends_although_a_forked_child_has_it_too() -> None:
    with pair(CONFIG) as there:
        ask(there, b"?")
        there.at_b.answer = lambda _: Future()
        server = next(iter(there.b._peers["a"].servers))
        copy = os.dup(there.a._peers["b"].idle[0]._sock.fileno())  # as in a child
        try:
            with pytest.raises(CallTimeoutError):
                ask(there, b"hold", timeout=0.01)
            server.thread.join(PATIENCE)
            assert not server.thread.is_alive()
        finally:
            os.close(copy)


# -- messages ---------------------------------------------------------------------------------


def test_messages_that_wait_for_room_leave_before_later_ones() -> None:
    with pair(CONFIG) as there:
        there.at_a.gate.clear()
        there.b.send("a", [b"busy"])  # a's dispatcher sends nothing from now on
        until(lambda: there.at_a.thread != 0, "nothing is read")
        connection = there.a._peers["b"].connection
        for later in (True, False):  # if nothing more is sent, what waits leaves as well
            there.at_b.messages.clear()
            there.at_b.gate.clear()
            sent = 0
            while connection.is_empty():
                there.a.send("b", [b"%d" % sent, bytes(20_000)])
                sent += 1
            there.at_b.gate.set()
            there.at_b.has(sent - 1)  # there is room now
            if later:
                there.a.send("b", [b"%d" % sent])
                sent += 1
            there.at_a.gate.set()
            assert [int(frames[0]) for frames in there.at_b.has(sent)] == [*range(sent)]


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
    with pair(CONFIG, also=send) as there:
        there.at_b.has(1)
        assert len(there.a._peers["b"].connections) == 1


# -- ends -------------------------------------------------------------------------------------


def test_a_packet_that_cannot_be_read_ends_the_connection_for_both(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("for a test")

    with pair(CONFIG) as there:
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
    with pair(CONFIG) as there:
        there.at_b.gate.clear()
        for n in range(200):
            there.a.send("b", [b"%d" % n])
        until(lambda: there.at_b.thread != 0, "nothing is read")
        there.b._membership.lose("a", "has died")
        there.at_b.gate.set()
        until(lambda: bool(there.at_b.lost), "its end is not reported")
        assert [int(bytes(frames[0])) for _, frames in there.at_b.messages] == [*range(200)]


def test_a_member_that_is_closed_reports_no_other_lost() -> None:
    with pair(CONFIG) as there:
        there.a.close()
        until(lambda: bool(there.at_b.lost), "its end is not reported")
        there.a._report_lost("b", "has died")  # as seen at that moment
        assert not there.at_a.lost


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_end_of_the_thread_that_receives_ends_all_members() -> None:
    def end() -> None:
        raise SystemExit

    with pair(CONFIG) as there:
        there.a._dispatcher.call(end)
        until(lambda: [name for name, _ in there.at_a.lost] == ["b"], "nobody is reported")
        with pytest.raises(PeerLostError, match="the thread that receives has ended"):
            there.a.send("b", [b"?"])


# -- memory -----------------------------------------------------------------------------------


def blocks(there: Pair) -> int:
    """Return how many blocks of shared memory what *a* has sent takes."""
    count: int = there.a.arena("a").usage().blocks
    return count


def test_memory_of_requests_and_replies_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "_IDLE", 0.2)
    monkeypatch.setattr(arenas, "_AGAIN", 0.01)  # it is looked often before that has passed
    with pair(CONFIG) as there:
        large = os.urandom(LARGE)
        for _ in range(20):
            assert ask(there, large) == [large]
            there.a.send("b", [b"", large])
        there.at_b.has(20)
        there.at_b.messages.clear()
        for transport in (there.a, there.b):
            arena = transport.arena(transport.name)
            until(lambda arena=arena: arena.usage().blocks == 0, "blocks are left")  # type: ignore[misc]
            until(lambda arena=arena: arena.usage().free == 0, "the system does not get it back")  # type: ignore[misc]


def test_memory_of_a_request_that_was_given_up_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_given_up = DirectServer._is_given_up

    def is_soon_given_up(server: DirectServer) -> bool:
        until(lambda: is_given_up(server), "the caller still waits")
        return True

    with pair(CONFIG) as there:
        ask(there, b"?")
        monkeypatch.setattr(DirectServer, "_is_given_up", is_soon_given_up)
        with pytest.raises(CallTimeoutError):
            ask(there, bytes(LARGE), timeout=1e-9)
        until(lambda: blocks(there) == 0, "its block is not given back")
        assert len(there.at_b.asked) == 1


def test_memory_of_a_reply_that_nobody_has_read_is_given_back() -> None:
    with pair(CONFIG) as there:
        ask(there, b"?")
        direct = there.a._peers["b"].idle[0]

        def leave() -> None:
            direct._poll.poll()
            raise CallTimeoutError("a request", 0.0)

        direct._receive = leave
        there.at_b.answer = lambda _: [bytes(LARGE)]
        with pytest.raises(CallTimeoutError):
            exchange(there, b"?")
        until(lambda: there.b.arena("b").usage().blocks == 0, "its block is not given back")


def test_memory_that_a_dead_member_has_not_read_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads, dead = threading.Event(), threading.Event()

    def answer_nothing(*_: object) -> None:
        reads.set()
        dead.wait(PATIENCE)

    def receive_nothing(_: object) -> None:
        raise BlockingIOError

    with pair(CONFIG) as there:
        ask(there, b"?")
        there.at_b.gate.clear()
        there.a.send("b", [b"first"])
        until(lambda: there.at_b.thread != 0, "nothing is read")
        monkeypatch.setattr(DirectServer, "_answer", answer_nothing)
        monkeypatch.setattr(messages, "receive", receive_nothing)
        there.a.send("b", [b"", bytes(LARGE)])
        asking = ask_in_thread(there, bytes(LARGE))
        assert reads.wait(PATIENCE)
        assert blocks(there) == 2
        there.a._membership.lose("b", "has died")
        with pytest.raises(PeerLostError, match="has died"):
            asking.result(PATIENCE)
        until(lambda: blocks(there) == 0, "its blocks are not given back")
        dead.set()


def test_memory_of_a_message_that_does_not_leave_is_given_back() -> None:
    class Full:
        def send(self, *_: object) -> int:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    with pair(CONFIG) as there:
        connection = there.a._peers["b"].connection
        sock, connection.sock = connection.sock, Full()
        with pytest.raises(ResourceExhaustedError):
            there.a.send("b", [b"", bytes(LARGE)])
        assert blocks(there) == 0
        connection.sock, connection._is_dead = sock, True  # its end is not known yet
        there.a.send("b", [b"", bytes(LARGE)])
        assert blocks(there) == 0
        connection._is_dead = False
        there.a.send("b", [b"next"])
        assert there.at_b.has(1) == [[b"next"]]


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
        data = torch.ones(LARGE)
        assert len(group.rpc_sync(1, same, args=(data,))) == len(data)
        found.append(group.rpc_sync(1, memory_here))
        assert len(group.rpc_async(1, same, args=(data,)).wait()) == len(data)
        found.append(group.rpc_sync(1, memory_here))
    group.barrier(PATIENCE)
    return found


def job(**transport: Any) -> dict[str, Any]:
    transport = {"backend": "ipc", **transport}
    return {"members": 2, "transport": transport, "reducer": {"backend": "local"}}


def test_a_large_result_to_which_nothing_else_refers_goes_back_in_the_memory_of_the_call() -> None:
    assert pparallel.launch(job(), send_and_take_back)[0] == [0, 0]


def call_without_room(rt: Runtime) -> None:
    group, large = rt.group(), LARGE
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
            assert group.rpc_sync(1, abs, args=(-1,)) == 1
    group.barrier(PATIENCE)


def reply_later(size: int) -> Future[bytes]:
    later: Future[bytes] = Future()
    threading.Timer(0.01, later.set_result, [bytes(size)]).start()
    return later


def test_a_message_that_cannot_be_packed_loses_no_member() -> None:
    pparallel.launch(job(arena_budget=1 << 19), call_without_room)


# -- descriptors that run out -------------------------------------------------------------------


def fail_next(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException, times: int = 1
) -> list[float]:
    """Have the next calls of a function by this backend fail; return when they do."""
    original, failures = getattr(owner, name), list[float]()

    def call(*args: Any, **kwargs: Any) -> Any:
        file = sys._getframe(1).f_code.co_filename
        if len(failures) < times and ("pparallel_ipc" in file or "links/dispatcher" in file):
            failures.append(time.monotonic())
            raise error
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return failures


NONE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_message_fails_that_finds_no_descriptor_to_connect_and_the_member_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pair(CONFIG) as there:
        peer = there.a._peers["b"]
        peer.connection, met = None, peer.connection  # as of members that have not met
        for _ in range(2):
            failures = fail_next(monkeypatch, socket, "socket", NONE)
            with pytest.raises(ResourceExhaustedError, match="the connection to member 'b'"):
                there.a.send("b", [b"none"])
            assert failures
            monkeypatch.undo()
        assert there.a.members() == ["a", "b"]
        there.a.send("b", [b"first"])
        assert there.at_b.has(1) == [[b"first"]]
        assert peer.connection is not met


def test_a_member_without_descriptors_lets_others_in_later_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = fail_next(monkeypatch, socket.socket, "accept", NONE, 3)
    with pair(CONFIG) as there:
        there.b.send("a", [b"first"])
        assert there.at_a.has(1) == [[b"first"]]
    first, _, third = failures
    assert third - first > 0.1, "it does not pause"
    assert caplog.text.count("cannot let members in") == 1


def test_requests_to_a_member_without_descriptors_go_by_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    receive = messages.receive

    def receive_without(sock: socket.socket) -> tuple[bytes, list[int]]:
        data, fds = receive(sock)
        messages.close(fds)  # as the kernel does
        return data, []

    with pair(CONFIG) as there:
        with monkeypatch.context() as changed:
            changed.setattr(messages, "receive", receive_without)
            assert exchange(there, b"?") is None
        assert ask(there, b"?") == [b"?"]


@pytest.mark.parametrize(
    ("error", "why"),
    [(ValueError("this is no arena"), "this is no arena"), (NONE, "Too many open files")],
)
def test_a_member_whose_arena_cannot_be_attached_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, why: str
) -> None:
    before = psutil.Process().num_fds()
    fail_next(monkeypatch, Arena, "attach", error, 2)
    with pytest.raises(PeerLostError, match=why), pair(CONFIG):
        raise AssertionError("they have met")
    assert "Bad file descriptor" not in caplog.text  # it may be another's by then
    assert psutil.Process().num_fds() == before


@pytest.mark.parametrize(("owner", "name"), [(Arena, "create"), (os, "eventfd")])
def test_a_member_that_lacks_a_descriptor_to_open_says_so_and_leaves_none(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    before = psutil.Process().num_fds()
    fail_next(monkeypatch, owner, name, NONE)
    config = IpcTransportConfig(rendezvous_timeout=0.5)  # the other member waits in vain
    with pytest.raises(OSError, match="Too many open files"), pair(config):
        raise AssertionError("it is there")
    until(lambda: psutil.Process().num_fds() == before, "a descriptor is left")


def test_the_end_of_a_connection_is_reported_without_a_descriptor_to_look_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pair(CONFIG) as there:
        failures = fail_next(monkeypatch, ProcessId, "ends_within", NONE)
        for connection in list(there.b._peers["a"].connections):
            connection.sock.shutdown(socket.SHUT_RDWR)
        until(lambda: bool(there.at_b.lost), "its end is not reported")
        assert failures
