"""Direct connections of members on ZeroMQ: requests and replies without other threads."""

from __future__ import annotations

import signal
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zmq
from typing_extensions import override
from zmq_meetings import PLACES, meeting
from zmq_peer import Asking, transport

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError, SerializationError
from pparallel.interfaces.transport import Frames
from pparallel.testing.patience import PATIENCE, until
from pparallel_zmq import messages, sockets, strangers
from pparallel_zmq.address import Address
from pparallel_zmq.direct import DirectCaller, DirectConnection, EndedError
from pparallel_zmq.sockets import NOW
from pparallel_zmq.transport import ZmqTransport

Answer = Callable[[Frames], "Frames | Future[Frames]"]


class Answering(Asking):
    """Answers exchanges.

    Attributes:
        answer: called with each request.
    """

    answer: Answer = staticmethod(lambda frames: frames)

    @override
    def on_message(self, sender: str, frames: Frames) -> None:
        self.answer(frames)

    @override
    def on_exchange(self, sender: str, frames: Frames) -> Any:
        self.asked.append(sender)
        return self.answer(frames)


class Pair(NamedTuple):
    """Two members of one process."""

    own: ZmqTransport
    other: ZmqTransport
    there: Answering


@contextmanager
def pair(place: str = "ipc", **options: object) -> Iterator[Pair]:
    names = ["m0", "m1"]
    with meeting(names, place) as met, ExitStack() as stack:
        both = [transport(name, names, met, **{"liveness_bound": 5.0, **options}) for name in names]
        receivers = [Answering(each) for each in both]
        for each in both:
            stack.callback(each.close)
        opens = threading.Thread(target=both[1].open, args=(receivers[1],))
        opens.start()
        both[0].open(receivers[0])
        opens.join(PATIENCE)
        yield Pair(both[0], both[1], receivers[1])


def asked(own: ZmqTransport, frames: Frames, timeout: float | None = PATIENCE) -> list[bytes]:
    """Return the reply to an exchange, once there is a way for it."""
    found: list[Frames] = []

    def has_reply() -> bool:
        reply = own.exchange("m1", frames, timeout)
        found.extend([] if reply is None else [reply])
        return reply is not None

    until(has_reply, "there is no direct connection")
    return [bytes(each) for each in found[0]]


@pytest.mark.parametrize("place", PLACES)
def test_requests_and_replies_of_all_sizes(place: str) -> None:
    sizes = [0, 1, 2**16, 2**16 + 1, 20 * 2**20, 5]
    with pair(place) as (own, _, there):
        there.answer = lambda frames: [*frames, b"end"]
        for size in sizes:
            sent = bytes(range(256)) * (size // 256) + bytes(size % 256)
            assert asked(own, [sent, b"", sent[:7]]) == [sent, b"", sent[:7], b"end"]
        assert asked(own, [bytes(each) for each in sizes]) == [*map(bytes, sizes), b"end"]


def test_a_reply_that_exceeds_the_limits_fails_its_request_alone() -> None:
    with pair(max_message=2**16) as (own, _, there):
        asked(own, [b"first"])
        there.answer = lambda _: [bytes(2**16 + 1)]
        with pytest.raises(SerializationError, match=r"transport\.max_message"):
            asked(own, [b"?"])
        there.answer = lambda frames: frames
        assert asked(own, [b"next"]) == [b"next"]


def test_what_was_received_is_let_go_of() -> None:
    received: list[weakref.ref[Any]] = []

    def answer(frames: Frames) -> Frames:
        received.append(weakref.ref(memoryview(frames[-1]).obj))
        return [b"%d" % memoryview(frames[-1]).nbytes]

    large = bytearray(3 * 2**20)
    with pair() as (own, _, there):
        asked(own, [b"first"])
        there.answer = answer
        assert asked(own, [large]) == [b"3145728"]
        own.send("m1", [b"", large])
        until(lambda: len(received) == 2, "it has not come")
        until(lambda: [each() for each in received] == [None] * 2, "what was handled is held")


def test_few_are_made_and_others_wait_for_none() -> None:
    with pair() as (own, _, there):
        asked(own, [b"first"])
        held, waiting = threading.Event(), threading.Semaphore(0)

        def answer(frames: Frames) -> Frames:
            waiting.release()
            held.wait(PATIENCE)
            return frames

        there.answer = answer
        threads = []
        for _ in range(8):
            threads.append(threading.Thread(target=asked, args=(own, [b"x"]), daemon=True))
            threads[-1].start()
            assert waiting.acquire(timeout=PATIENCE), "it does not come by"
        assert [own.exchange("m1", [b"x"], 5.0) for _ in range(20)] == [None] * 20
        assert len(there.asked) == 9
        held.set()
        for each in threads:
            each.join(PATIENCE)
        assert asked(own, [b"after"]) == [b"after"]


def test_what_comes_too_late_is_not_taken_for_another_reply() -> None:
    with pair() as (own, _, there):
        late: Future[Frames] = Future()
        replies: list[Frames | Future[Frames]] = [[b"first"], late, [b"next"]]
        there.answer = lambda _: replies.pop(0)
        assert asked(own, [b"?"]) == [b"first"]
        with pytest.raises(CallTimeoutError, match=r"0\.2 s"):
            asked(own, [b"?"], 0.2)
        late.set_result([b"late"])
        assert asked(own, [b"?"]) == [b"next"]


def test_an_interrupt_leaves_the_wait() -> None:
    main = threading.get_ident()
    with pair() as (own, _, there):
        asked(own, [b"first"])

        def answer(_: Frames) -> Future[Frames]:
            signal.pthread_kill(main, signal.SIGINT)
            return Future()

        there.answer = answer
        with pytest.raises(KeyboardInterrupt):
            own.exchange("m1", [b"?"], None)
        there.answer = lambda frames: frames
        assert asked(own, [b"after"]) == [b"after"]


@pytest.mark.parametrize("later", [False, True])
def test_the_end_of_the_other_member_ends_what_waits(later: bool) -> None:
    with pair() as (own, other, there):
        asked(own, [b"first"])
        direct = own._direct["m1"]

        def has_ended() -> bool:
            with direct._lock:
                return direct._has_ended

        def answer(frames: Frames) -> Frames | Future[Frames]:
            threading.Thread(target=other.close).start()
            if later:
                return Future()
            until(has_ended, "it is not lost")
            return frames

        there.answer = answer
        with pytest.raises(PeerLostError, match="left"):
            own.exchange("m1", [b"?"], None)


def test_a_defect_there_ends_the_call_alone(caplog: pytest.LogCaptureFixture) -> None:
    with pair() as (own, _, there):
        asked(own, [b"first"])
        there.answer = lambda _: [][0]
        with pytest.raises(PeerLostError, match="its log says why"):
            own.exchange("m1", [b"?"], PATIENCE)
        assert "could not be answered" in caplog.text
        there.answer = lambda frames: frames
        assert asked(own, [b"after"]) == [b"after"]


def test_one_that_has_ended_while_nobody_used_it_is_replaced() -> None:
    with pair(liveness_bound=0.5) as (own, other, _):
        asked(own, [b"first"])
        for server in list(other._direct["m0"]._servers):
            server.close()
        until(lambda: not other._direct["m0"]._servers, "it does not end")
        ended = own._direct["m1"]._idle[0]
        until(lambda: not int(ended._socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT, "it is not seen")
        assert asked(own, [b"next"]) == [b"next"]


def test_an_end_that_nobody_explains_does_not_outlast_the_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pair() as (own, other, there):
        asked(own, [b"first"])

        def answer(_: Frames) -> Frames:
            for server in list(other._direct["m0"]._servers):
                server.close()
            return []

        there.answer = answer
        waits: list[float] = []

        def wait(_: str, timeout: float = 1.0) -> None:
            waits.append(timeout)

        monkeypatch.setattr(own._membership, "wait_for_end", wait)
        with pytest.raises(PeerLostError, match="dropped the call"):
            own.exchange("m1", [b"?"], 0.3)
        assert waits[0] <= 0.3


def test_no_socket_file_is_left_and_one_of_a_killed_process_is_no_hindrance(
    tmp_path: Path,
) -> None:
    for stale in ("meet", "meet.1"):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(tmp_path / stale))
    with pair(f"ipc://{tmp_path}/meet") as (own, *_):
        assert asked(own, [b"?"]) == [b"?"]
        names = {each.name for each in tmp_path.iterdir()}
        assert {"meet", "meet.1"} < names  # and that of a direct connection
    assert list(tmp_path.iterdir()) == []


def test_a_socket_file_that_another_process_has_bound_since_is_left(tmp_path: Path) -> None:
    path, other = tmp_path / "meet", tmp_path / "other"
    path.touch()
    other.touch()
    mine = sockets._File(str(path), path.stat().st_ino)
    other.rename(path)
    mine.remove()
    assert path.exists()
    for _ in range(2):
        sockets._File(str(path), path.stat().st_ino if path.exists() else 0).remove()
    assert not path.exists()


def test_without_descriptors_there_is_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with pair(liveness_bound=0.5) as (own, _, _there):

        def none() -> None:
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr(sockets, "_check_descriptors", none)
            assert own.exchange("m1", [b"?"], PATIENCE) is None
        assert asked(own, [b"later"]) == [b"later"]  # it is tried again after the bound


def _direct_of(own: ZmqTransport) -> Any:
    """Return the caller's end that waits for the other one."""
    found = own._direct["m1"]
    until(lambda: own.exchange("m1", [b"?"], 1.0) is None and bool(found._coming), "none is made")
    return found._coming


@pytest.mark.parametrize("kind", [messages.SERVED, messages.FRAMES])
def test_another_member_is_not_taken_for_the_one_that_is_asked(
    kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["m0", "m1", "m2"]
    monkeypatch.setattr(ZmqTransport, "_serve_direct", lambda *_: None)
    with meeting(names, PLACES[1]) as met, ExitStack() as stack:
        members = [transport(name, names, met, liveness_bound=0.5) for name in names]
        opens = [threading.Thread(target=each.open, args=(Answering(each),)) for each in members]
        for each, opening in zip(members, opens, strict=True):
            stack.callback(each.close)
            opening.start()
        for opening in opens:
            opening.join(PATIENCE)
        own, *_, false = members
        coming = _direct_of(own)
        where = coming._socket.get_string(zmq.LAST_ENDPOINT)
        end = false._sockets.direct_to("m0", where)
        end.send(messages.pack([], false._limits, kind)[0][0], NOW)
        until(lambda: own.exchange("m1", [b"?"], 1.0) is None and coming._is_closed, "it is kept")
        assert own._direct["m1"]._idle == []


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
    with pair(PLACES[1], liveness_bound=PATIENCE) as (own, *_), ExitStack() as stack:
        where = Address.parse(_direct_of(own)._socket.get_string(zmq.LAST_ENDPOINT))
        all_of_them = [socket.create_connection((where.host, where.port)) for _ in range(10)]
        for each in all_of_them:
            stack.enter_context(each)
            each.setblocking(False)
        until(lambda: sum(map(_is_closed, all_of_them)) >= 6, "all are kept")
        until(lambda: bool(held), "nobody was asked to connect")
        serve(*held.pop())
        assert asked(own, [b"?"]) == [b"?"]


def test_close_ends_what_waits_for_a_large_request_to_be_taken() -> None:
    with pair() as (own, other, there):
        asked(own, [b"first"])
        there.answer = lambda _: Future()
        errors: list[BaseException] = []

        def call() -> None:
            try:
                own.exchange("m1", [bytes(2**25)], None)
            except ClosedError as error:
                errors.append(error)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        until(lambda: len(there.asked) == 2, "it was not asked")
        own.close()
        thread.join(PATIENCE)
        assert len(errors) == 1
        assert other.members() == ["m1"]


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


def test_a_request_to_a_member_that_is_given_up_ends() -> None:
    with pair() as (own, _, there):
        asked(own, [b"first"])
        there.answer = lambda _: Future()
        errors: list[BaseException] = []

        def call() -> None:
            try:
                own.exchange("m1", [b"?"], None)
            except PeerLostError as error:
                errors.append(error)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        until(lambda: len(there.asked) == 2, "it was not asked")
        own._membership.lose("m1", "is given up")
        thread.join(PATIENCE)
        assert [str(each) for each in errors] == [str(PeerLostError("m1", "is given up"))]


def test_a_connection_that_has_proven_itself_is_not_among_the_strangers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strangers, "STRANGERS", 2)
    found = strangers.Strangers()
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(4)]
        for each in pairs:
            stack.enter_context(each[0])
            stack.enter_context(each[1])
        member, *others = [each[0].fileno() for each in pairs]
        found.happened(zmq.EVENT_ACCEPTED, member)
        found.proven(member)
        for other in others:
            found.happened(zmq.EVENT_ACCEPTED, other)
        for _, far in pairs:
            far.setblocking(False)
        assert pairs[1][1].recv(1) == b""  # the oldest stranger
        for kept in (0, 2, 3):
            with pytest.raises(BlockingIOError):
                pairs[kept][1].recv(1)


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
