"""A transport by itself: members in one process, without the RPC layer."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pytest
from typing_extensions import Buffer

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError, PparallelError
from pparallel.interfaces.transport import Frames, Transport, TransportConfig
from pparallel.registry import default_registry
from pparallel.runtime.member import Member
from pparallel.runtime.rpc.codec import EXCHANGE
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel.testing.transport.base import TransportTests

HUGE = 70_000_000  #: bytes; more than a socket or a ZeroMQ message of one piece should be given
MANY = 70_000  #: frames: more than a number of 16 bits counts
ASK = bytes([EXCHANGE])  #: the first frame of an exchange
DEFECT = b"defect"  #: the first frame of a message at which the receiver raises
SOON = 2.0  #: seconds beyond a time-out within which it must have been kept, on a busy computer

Answer = Callable[[str, Frames], "Frames | Future[Frames]"]


def echo(sender: str, frames: Frames) -> Frames:
    return [sender.encode(), *frames]


class Received:
    """A receiver that keeps what comes, and answers exchanges by a function.

    Attributes:
        messages: the frames of each, with its sender.
        asked: the exchanges that have begun.
        lost: members that have ended, with the reasons.
        before: how many messages had come before the end of the first of them.
        gate: a message waits for it.
        thread: that took the last message.
    """

    def __init__(self, answer: Answer) -> None:
        self.messages: list[tuple[str, list[Buffer]]] = []
        self.asked: list[str] = []
        self.lost: list[tuple[str, str]] = []
        self.before = 0
        self.gate = threading.Event()
        self.gate.set()
        self.thread = 0
        self._answer = answer

    def on_message(self, sender: str, frames: Frames) -> None:
        self.thread = threading.get_ident()
        self.gate.wait(PATIENCE)
        if frames and bytes(frames[0]) == DEFECT:
            raise LookupError("a defect")
        self.messages.append((sender, list(frames)))

    def on_exchange(self, sender: str, frames: Frames) -> Frames | Future[Frames]:
        self.asked.append(sender)
        return self._answer(sender, frames[1:])

    def on_reset(self, name: str, error: BaseException) -> None:
        raise AssertionError(f"messages of {name} were lost: {error}")

    def on_lost(self, name: str, reason: str) -> None:
        self.before = self.before or len(self.messages)
        self.lost.append((name, reason))

    def has(self, count: int) -> list[list[bytes]]:
        """Wait until *count* messages have come; return their frames."""
        until(lambda: len(self.messages) >= count, f"{count} messages did not arrive")
        return [copied(frames) for _, frames in self.messages]


class Link(NamedTuple):
    """Members that are open: two transports, and what both and the last member receive."""

    transport: Transport
    to: str
    here: Received
    there: Received
    other: Transport
    last: Received


Open = Callable[..., Link]


def copied(frames: Frames) -> list[bytes]:
    return [bytes(each) for each in frames]


def are_same(found: Frames, expected: Frames) -> bool:
    """Compare here: pytest would take minutes to explain megabytes."""
    return copied(found) == copied(expected)


def overwrite(frames: Frames, value: int) -> None:
    """Fill what may be written to."""
    for each in frames:
        if not (view := memoryview(each)).readonly:
            view[:] = bytes([value]) * view.nbytes


def values_in(frames: Frames) -> set[int]:
    return {value for each in frames for value in set(bytes(each))}


def unless_empty(_: str, frames: Frames) -> Frames | Future[Frames]:
    """Answer an exchange with what was sent, and one without data never."""
    return copied(frames) if frames and bytes(frames[0]) else Future()


@contextmanager
def signals(period: float) -> Iterator[None]:
    """Interrupt the main thread by a signal again and again."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals come to the main thread alone")
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    main, ended = threading.get_ident(), threading.Event()

    def interrupt() -> None:
        while not ended.wait(period):
            signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


class AloneTests(TransportTests):
    """Tests of what stands below calls, on transports that the RPC layer does not hold."""

    @pytest.fixture
    def open_transport(self, config: TransportConfig) -> Iterator[Open]:
        """Open members of this process, two by default; *answer* answers their exchanges."""
        record = default_registry().find("transport", config.backend)
        if "threads" not in record.reach:
            pytest.skip("there cannot be two members in one process")
        cls: Any = default_registry().load(record)
        with ExitStack() as opened:

            def open_transport(answer: Answer = echo, count: int = 2) -> Link:
                names = tuple(f"m{rank}" for rank in range(count))
                meeting = opened.enter_context(cls.meeting(config, names))
                found = []
                for rank, name in enumerate(names):
                    keys = meeting.keys.get(name, {})
                    member = Member(name, rank, rank, count, names, meeting.address, keys)
                    found.append(cls(config, member=member))
                    opened.callback(found[-1].close)
                receivers = [Received(answer) for _ in names]
                for each in receivers:
                    opened.callback(each.gate.set)
                in_threads(count, lambda n: found[n].open(receivers[n]))
                here, there, last = receivers[0], receivers[1], receivers[-1]
                return Link(found[0], names[1], here, there, found[1], last)

            yield open_transport

    # -- messages -----------------------------------------------------------------------------

    def test_frames_arrive_as_sent(self, open_transport: Open) -> None:
        transport, to, _, there, *_ = open_transport()
        many = [bytes([n % 251]) * n for n in range(300)]
        small: list[Buffer] = [b"", bytearray(), b"x", b""]
        large: list[Buffer] = [bytes(range(250)) * 12_000, b"!", bytearray(range(250)) * 400]
        huge: list[Buffer] = [b"", bytes(range(250)) * (HUGE // 250), b"!"]
        view = memoryview(bytearray(range(100))).cast("B", (10, 10))
        messages: list[Frames] = [[b"one"], small, large, many, huge, [b"x"] * MANY, [b"", view]]
        for sent in messages:
            transport.send(to, sent)
        found = there.has(len(messages))
        assert all(map(are_same, found, [*messages[:-1], [b"", bytes(range(100))]]))
        assert {sender for sender, _ in there.messages} == {transport.name}
        (_, smalls), (_, larges) = there.messages[1:3]
        assert not memoryview(smalls[1]).readonly
        assert not memoryview(larges[2]).readonly

    def test_messages_of_each_thread_arrive_once_and_in_order(self, open_transport: Open) -> None:
        transport, to, _, there, *_ = open_transport()

        def send(thread: int) -> None:
            for number in range(200):
                transport.send(to, [b"%d" % thread, b"%d" % number])

        in_threads(4, send)
        transport.send(to, [b"4", b"0"])
        found = there.has(801)
        for thread in range(4):
            assert [int(number) for of, number in found if int(of) == thread] == [*range(200)]

    def test_a_member_that_does_not_read_holds_up_nobody(self, open_transport: Open) -> None:
        link = open_transport(count=3)
        slow, other = link.there, link.last
        slow.gate.clear()
        large = bytes(1_000_000)

        def send() -> None:
            for _ in range(20):
                link.transport.send(link.to, [large])

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        until(lambda: bool(slow.thread), "nothing arrived at the slow member")
        for number in range(20):
            link.transport.send("m2", [b"%d" % number, large])
        assert [int(frames[0]) for frames in other.has(20)] == [*range(20)]
        if slow.thread != sender.ident:
            sender.join(PATIENCE)
            assert not sender.is_alive(), "sending waits for the receiver"
        slow.gate.set()
        slow.has(20)
        sender.join(PATIENCE)

    def test_messages_sent_before_the_close_arrive(self, open_transport: Open) -> None:
        transport, to, _, there, *_ = open_transport()
        there.gate.clear()
        first = threading.Thread(target=transport.send, args=(to, [b"0"]), daemon=True)
        first.start()
        until(lambda: bool(there.thread), "the first did not arrive")
        for number in range(1, 100):
            transport.send(to, [b"%d" % number])
        in_threads(2, lambda n: there.gate.set() if n else transport.close())
        assert [int(frames[0]) for frames in there.has(100)] == [*range(100)]
        until(lambda: bool(there.lost), "the end is not reported")
        assert [name for name, _ in there.lost] == [transport.name]
        assert there.before == 100, "the end is reported before the last message"

    def test_a_receiver_that_raises_makes_nobody_deaf(self, open_transport: Open) -> None:
        def answer(_: str, frames: Frames) -> Frames:
            if bytes(frames[0]) == DEFECT:
                raise LookupError("a defect")
            return copied(frames)

        link = open_transport(answer)
        link.transport.send(link.to, [DEFECT])
        link.transport.send(link.to, [b"next"])
        assert link.there.has(1) == [[b"next"]]
        for _ in range(2):
            with pytest.raises(PparallelError):
                self._ask(link, [DEFECT])
            assert self._ask(link, [b"next"]) == [b"next"]

    def test_what_arrives_is_the_receivers_own(self, open_transport: Open) -> None:
        answered: list[Frames] = []

        def answer(_: str, frames: Frames) -> Frames:
            overwrite(frames, 2)
            answered.append(frames)
            return frames

        link = open_transport(answer, count=3)
        mine = [bytearray(b"\1" * size) for size in (0, 1, 100, 3_000_000, 100_000)]
        whole = memoryview(mine[-1])
        sent: list[Buffer] = [*mine, whole[10:-10], bytes(whole), whole.toreadonly()]
        before = copied(sent)
        for to in (link.to, link.to, "m2"):
            link.transport.send(to, sent)
        reply = link.transport.exchange(link.to, [ASK, *sent], PATIENCE)
        link.there.has(2)
        link.last.has(1)
        received = [frames for _, frames in (*link.there.messages, *link.last.messages)]
        assert all(are_same(each, before) for each in received)
        if reply is not None:
            assert values_in(reply) <= {1, 2}
            received += [list(answered[0]), list(reply)]
        for number, frames in enumerate(received, 3):
            assert not any(memoryview(each).readonly for each in frames[: len(mine) + 1])
            overwrite(frames, number)
        assert are_same(sent, before), "the sender saw a change"
        overwrite(mine, 0)
        for number, frames in enumerate(received, 3):
            assert values_in(frames) <= {1, number}, "a receiver saw a change"

    # -- exchanges ----------------------------------------------------------------------------

    def _ask(self, link: Link, frames: Frames, timeout: float | None = PATIENCE) -> list[bytes]:
        if type(link.transport).exchange is Transport.exchange:
            pytest.skip("there are no exchanges")
        found: list[Frames] = []

        def has_reply() -> bool:  # there may be no way yet, or others may use all there are
            reply = link.transport.exchange(link.to, [ASK, *frames], timeout)
            found.extend([] if reply is None else [reply])
            return reply is not None

        until(has_reply, "there is no way for an exchange")
        return copied(found[0])

    def test_each_reply_is_that_to_its_request(self, open_transport: Open) -> None:
        def answer(_: str, frames: Frames) -> Frames | Future[Frames]:
            if memoryview(frames[1]).nbytes % 7:
                return copied(frames)
            reply: Future[Frames] = Future()  # which comes later
            timer = threading.Timer(0.001, reply.set_result, [copied(frames)])
            timer.daemon = True
            timer.start()
            return reply

        link = open_transport(answer)
        self._ask(link, [b"first", b"1"])

        def ask(thread: int) -> None:
            for number in range(50):
                sent = [b"%d" % thread, bytes(number * 1000)]
                assert self._ask(link, sent) == sent

        in_threads(4, ask)
        assert len(link.there.asked) == 201, "one that was said not to be sent has arrived"

    def _ends_in_time(self, link: Link) -> None:
        began = time.monotonic()
        with pytest.raises(CallTimeoutError, match=r"0\.4 s"):
            self._ask(link, [b""], 0.4)
        assert time.monotonic() - began < 0.4 + SOON

    def test_an_exchange_ends_with_its_timeout(self, open_transport: Open) -> None:
        link = open_transport(unless_empty)
        for _ in range(3):  # those that have been quick end in time, too
            assert self._ask(link, [b"x"]) == [b"x"]
        self._ends_in_time(link)
        assert self._ask(link, [b"y"]) == [b"y"]
        with signals(0.05):
            self._ends_in_time(link)

    def test_close_ends_what_waits(self, open_transport: Open) -> None:
        self._ends(open_transport(unless_empty), lambda link: link.transport, ClosedError)

    def test_exchanges_end_with_their_member(self, open_transport: Open) -> None:
        self._ends(open_transport(unless_empty), lambda link: link.other, PeerLostError)

    def _ends(self, link: Link, closes: Callable[[Link], Transport], kind: type[Exception]) -> None:
        found: list[object] = []
        self._ask(link, [b"first"])

        def ask() -> None:
            try:
                found.append(self._ask(link, [], None))
            except Exception as error:  # noqa: BLE001 - looked at below
                found.append(error)

        caller = threading.Thread(target=ask, daemon=True)
        caller.start()
        until(lambda: bool(link.there.asked[1:] or found), "nothing was asked")
        closes(link).close()
        caller.join(PATIENCE)
        assert [type(each) for each in found] == [kind]

    # -- ends ---------------------------------------------------------------------------------

    def test_use_before_and_after(self, config: TransportConfig, open_transport: Open) -> None:
        record = default_registry().find("transport", config.backend)
        unopened: Any = default_registry().load(record)(config, member=Member())
        with pytest.raises(ClosedError):
            unopened.members()
        unopened.close()
        transport, to, _, there, *_ = open_transport()
        assert sorted(transport.members()) == sorted({transport.name, to})
        with pytest.raises(PeerLostError, match="nobody"):
            transport.send("nobody", [b"?"])
        transport.close()
        transport.close()
        for use in (transport.members, lambda: transport.send(to, [b"?"])):
            with pytest.raises(ClosedError):
                use()
        until(lambda: bool(there.lost), "the end is not reported")
