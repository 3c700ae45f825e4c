"""Direct connections of two members: requests and replies without other threads."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest
import zmq
from exhausted import no_descriptors
from member_pairs import NAMES, ask, ask_in_thread, exchange, made, opened, pair
from typing_extensions import override

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError, SerializationError
from pparallel.interfaces.transport import Frames, TransportConfig
from pparallel.testing.patience import PATIENCE, until
from pparallel_ipc import IpcTransportConfig
from pparallel_zmq import ZmqTransportConfig, messages, strangers
from pparallel_zmq.address import Address
from pparallel_zmq.direct import DirectCaller, DirectConnection, EndedError
from pparallel_zmq.sockets import NOW
from pparallel_zmq.transport import ZmqTransport

MOST = 8  #: direct connections to one member
IPC = IpcTransportConfig(lanes=MOST)
ZMQ = ZmqTransportConfig()
HASTY = ZmqTransportConfig(liveness_bound=0.5)  #: a connection is made again after the bound
ON_TCP = ZmqTransportConfig(address="tcp://127.0.0.1:0", liveness_bound=PATIENCE)

both = pytest.mark.parametrize("config", [IPC, ZMQ], ids=lambda config: config.backend)


@both
def test_requests_and_replies_of_all_sizes(config: TransportConfig) -> None:
    sizes = [0, 1, 2**16, 2**16 + 1, 20 * 2**20, 5]
    with pair(config) as there:
        there.at_b.answer = lambda frames: [*frames, b"end"]
        for size in sizes:
            sent = bytes(range(256)) * (size // 256) + bytes(size % 256)
            assert ask(there, sent, b"", sent[:7]) == [sent, b"", sent[:7], b"end"]


@both
def test_few_are_made_and_others_wait_for_none(config: TransportConfig) -> None:
    held = threading.Event()

    def answer(frames: Frames) -> Frames:
        assert held.wait(PATIENCE)
        return frames

    with pair(config) as there:
        ask(there, b"first")
        there.at_b.answer = answer
        threads = [threading.Thread(target=ask, args=(there, b"x")) for _ in range(MOST)]
        for number, each in enumerate(threads, 2):
            each.start()
            until(lambda number=number: len(there.at_b.asked) == number, "it does not come by")  # type: ignore[misc]
        assert [exchange(there, b"x") for _ in range(20)] == [None] * 20
        assert len(there.at_b.asked) == MOST + 1
        held.set()
        for each in threads:
            each.join(PATIENCE)
        assert ask(there, b"after") == [b"after"]


@both
def test_what_comes_too_late_is_not_taken_for_another_reply(config: TransportConfig) -> None:
    with pair(config) as there:
        late: Future[Frames] = Future()
        replies: list[Frames | Future[Frames]] = [[b"first"], late, [b"next"]]
        there.at_b.answer = lambda _: replies.pop(0)
        assert ask(there, b"?") == [b"first"]
        with pytest.raises(CallTimeoutError, match=r"0\.2 s"):
            ask(there, b"?", timeout=0.2)
        late.set_result([b"late"])
        assert ask(there, b"?") == [b"next"]


@both
def test_a_later_reply_that_fails_ends_its_call_alone(config: TransportConfig) -> None:
    failed: Future[Frames] = Future()
    failed.set_exception(LookupError("for a test"))
    with pair(config) as there:
        ask(there, b"first")
        there.at_b.answer = lambda _: failed
        with pytest.raises(PeerLostError, match="has dropped the call"):
            exchange(there, b"?")
        there.at_b.answer = lambda frames: frames
        assert ask(there, b"next") == [b"next"]


@both
def test_a_request_to_a_member_that_is_given_up_ends(config: TransportConfig) -> None:
    with pair(config) as there:
        ask(there, b"first")
        there.at_b.answer = lambda _: Future()
        asking = ask_in_thread(there, b"?")
        until(lambda: len(there.at_b.asked) == 2, "it was not asked")
        there.a._membership.lose("b", "is given up")
        assert str(asking.exception(PATIENCE)) == str(PeerLostError("b", "is given up"))


@pytest.mark.parametrize("config", [IPC, HASTY], ids=lambda config: config.backend)
def test_a_member_without_descriptors_is_reached_later(config: TransportConfig) -> None:
    with pair(config) as there:
        there.a.send("b", [b"first"])
        there.at_b.has(1)  # each has accepted the other's connection
        with no_descriptors():
            assert exchange(there, b"?") is None
            there.a.send("b", [bytes(2**20)])
            assert there.at_b.has(2)[1] == [bytes(2**20)]
        assert ask(there, b"?") == [b"?"]


# -- on ZeroMQ --------------------------------------------------------------------------------


def test_a_reply_that_exceeds_the_limits_fails_its_request_alone() -> None:
    with pair(ZmqTransportConfig(max_message=2**16)) as there:
        ask(there, b"first")
        there.at_b.answer = lambda _: [bytes(2**16 + 1)]
        with pytest.raises(SerializationError, match=r"transport\.max_message"):
            ask(there, b"?")
        there.at_b.answer = lambda frames: frames
        assert ask(there, b"next") == [b"next"]


def test_one_that_has_ended_while_nobody_used_it_is_replaced() -> None:
    with pair(HASTY) as there:
        ask(there, b"first")
        for server in list(there.b._direct["a"]._servers):
            server.close()
        until(lambda: not there.b._direct["a"]._servers, "it does not end")
        ended = there.a._direct["b"]._idle[0]
        until(lambda: not int(ended._socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT, "it is not seen")
        assert ask(there, b"next") == [b"next"]


def test_close_ends_what_waits_for_a_large_request_to_be_taken() -> None:
    with pair(ZmqTransportConfig()) as there:
        ask(there, b"first")
        there.at_b.answer = lambda _: Future()
        asking = ask_in_thread(there, bytes(2**25))
        until(lambda: len(there.at_b.asked) == 2, "it was not asked")
        there.a.close()
        assert isinstance(asking.exception(PATIENCE), ClosedError)


def test_no_more_pieces_are_under_way_than_the_window_has() -> None:
    class Sending(DirectConnection):
        def __init__(self) -> None:
            self._limits, self._window = messages.Limits(10, 2**30, 2**17), 2
            self._next, self.pieces, self.most = self._take_back, 0, 0

        @override
        def _send(self, *parts: messages.Part) -> None:
            self.pieces += len(parts) > 1
            self.most = max(self.most, self.pieces)

        def _take_back(self) -> bytes:
            self.pieces -= 1
            return messages.MORE_BACK

    sending = Sending()
    sending.send([bytes(2**20)])
    assert sending.most == 2


@pytest.mark.parametrize("takes", [0, 1])
def test_a_request_of_which_a_part_has_left_is_not_sent_in_another_way(takes: int) -> None:
    room = takes

    class Full:
        def send(self, *_: object) -> None:
            nonlocal room
            room -= 1
            if room < 0:
                raise zmq.Again

    class Caller(DirectCaller):
        def __init__(self) -> None:
            self._limits, self._window = messages.Limits(10, 2**30, 2**17), 2
            self._lock, self._is_closed = threading.Lock(), False
            self._socket: Any = Full()

    if takes:
        with pytest.raises(EndedError):
            Caller().exchange([bytes(2**20)], None)
    else:
        assert Caller().exchange([bytes(2**20)], None) is None


# -- members and strangers where a direct connection of ZeroMQ is expected -----------------------


def _direct_of(own: ZmqTransport) -> Any:
    """Return the caller's end that waits for the other one."""
    found = own._direct["b"]
    until(lambda: own.exchange("b", [b"?"], 1.0) is None and bool(found._coming), "none is made")
    return found._coming


@pytest.mark.parametrize("kind", [messages.SERVED, messages.FRAMES])
def test_another_member_is_not_taken_for_the_one_that_is_asked(
    kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [*NAMES, "c"]
    monkeypatch.setattr(ZmqTransport, "_serve_direct", lambda *_: None)
    config = ZmqTransportConfig(address="tcp://127.0.0.1:0", liveness_bound=0.5)
    with ZmqTransport.meeting(config, names) as met:
        own, other, false = (made(config, name, met, names) for name in names)
        with opened(own, other, false):
            coming = _direct_of(own)
            where = coming._socket.get_string(zmq.LAST_ENDPOINT)
            end = false._sockets.direct_to("a", where)
            end.send(messages.pack([], false._limits, kind)[0][0], NOW)
            until(
                lambda: own.exchange("b", [b"?"], 1.0) is None and coming._is_closed, "it is kept"
            )
            assert own._direct["b"]._idle == []


def _is_closed(stranger: socket.socket) -> bool:
    try:
        while stranger.recv(1000):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_strangers_at_a_direct_connection_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "STRANGERS", 4)
    serve, held = ZmqTransport._serve_direct, []
    monkeypatch.setattr(ZmqTransport, "_serve_direct", lambda *args: held.append(args))
    with pair(ON_TCP) as there, ExitStack() as stack:
        where = Address.parse(_direct_of(there.a)._socket.get_string(zmq.LAST_ENDPOINT))
        all_of_them = [socket.create_connection((where.host, where.port)) for _ in range(10)]
        for each in all_of_them:
            stack.enter_context(each)
            each.setblocking(False)
        until(lambda: sum(map(_is_closed, all_of_them)) >= 6, "all are kept")
        until(lambda: bool(held), "nobody was asked to connect")
        serve(*held.pop())
        assert ask(there, b"?") == [b"?"]
        for each in [socket.create_connection((where.host, where.port)) for _ in range(10)]:
            stack.enter_context(each)
            each.setblocking(False)
            all_of_them.append(each)
        until(lambda: sum(map(_is_closed, all_of_them)) >= 16, "all are kept")
        assert exchange(there, b"?") == [b"?"], "a member is taken for a stranger"
