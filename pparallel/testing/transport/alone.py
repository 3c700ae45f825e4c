"""A transport by itself: two members in one process, without the RPC layer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from typing_extensions import Buffer

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError
from pparallel.interfaces.transport import Frames, Transport, TransportConfig
from pparallel.registry import default_registry
from pparallel.runtime.member import Member
from pparallel.runtime.request_transport import RequestTransport
from pparallel.runtime.rpc.codec import CALL_EXCHANGE
from pparallel.runtime.rpc.link import RequestLink
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel.testing.transport.base import TransportTests

HUGE = 70_000_000  #: bytes; more than a socket or a ZeroMQ message of one piece should be given
MANY = 70_000  #: frames: more than a number of 16 bits counts
ASK = bytes([CALL_EXCHANGE])  #: the first frame of an exchange

Answer = Callable[[str, Frames], "Frames | Future[Frames]"]


def echo(sender: str, frames: Frames) -> Frames:
    return [sender.encode(), *frames]


class Received:
    """A receiver that keeps what comes, and answers exchanges by a function.

    Attributes:
        messages: the frames of each, with its sender.
        asked: the exchanges that have begun.
        lost: members that have ended, with the reasons.
    """

    def __init__(self, answer: Answer) -> None:
        self.messages: list[tuple[str, list[Buffer]]] = []
        self.asked: list[str] = []
        self.lost: list[tuple[str, str]] = []
        self._answer = answer
        self.gate = threading.Event()  # a message waits for it
        self.gate.set()
        self.thread = 0  # that took the last message

    def on_message(self, sender: str, frames: Frames) -> None:
        self.thread = threading.get_ident()
        self.gate.wait(PATIENCE)
        self.messages.append((sender, list(frames)))

    def on_exchange(self, sender: str, frames: Frames) -> Frames | Future[Frames]:
        self.asked.append(sender)
        return self._answer(sender, frames[1:])

    def on_reset(self, name: str, error: BaseException) -> None:
        raise AssertionError(f"messages of {name} were lost: {error}")

    def on_lost(self, name: str, reason: str) -> None:
        self.lost.append((name, reason))

    def has(self, count: int) -> list[list[bytes]]:
        """Wait until *count* messages have come; return their frames."""
        until(lambda: len(self.messages) >= count, f"{count} messages did not arrive")
        return [copied(frames) for _, frames in self.messages]


class Link(NamedTuple):
    """Two members that are open: the transport of the first, and what either receives."""

    transport: Transport
    to: str
    here: Received
    there: Received
    other: Transport


Open = Callable[..., Link]


def are_same(found: Frames, expected: Frames) -> bool:
    """Compare here: pytest would take minutes to explain megabytes."""
    return copied(found) == copied(expected)


def copied(frames: Frames) -> list[bytes]:
    return [bytes(each) for each in frames]


class AloneTests(TransportTests):
    """Tests of what stands below calls, on transports that the RPC layer does not hold."""

    @pytest.fixture
    def open_transport(self, config: TransportConfig) -> Iterator[Open]:
        """Open two members; *answer* answers their exchanges."""
        record = default_registry().find("transport", config.backend)
        if "threads" not in record.reach:
            pytest.skip("there cannot be two members in one process")
        with ExitStack() as opened:

            def open_transport(answer: Answer = echo) -> Link:
                transports = _transports(config, default_registry().load(record), opened)
                receivers = [Received(answer) for _ in transports]
                in_threads(2, lambda n: transports[n].open(receivers[n]))
                (a, b), (here, there) = transports, receivers
                return Link(a, b.name, here, there, b)

            yield open_transport

    # -- messages -----------------------------------------------------------------------------

    def test_frames_arrive_as_sent(self, open_transport: Open) -> None:
        transport, to, _, there, _ = open_transport()
        many = [bytes([n % 251]) * n for n in range(300)]
        small: list[Buffer] = [b"", bytearray(), b"x", b""]
        large: list[Buffer] = [bytes(range(250)) * 12_000, b"!", bytearray(range(250)) * 400]
        view = memoryview(bytearray(range(100))).cast("B", (10, 10))
        messages: list[Frames] = [[b"one"], small, large, many, [b"", view]]
        for sent in messages:
            transport.send(to, sent)
        found = there.has(len(messages))
        assert all(map(are_same, found, [*messages[:-1], [b"", bytes(range(100))]]))
        assert {sender for sender, _ in there.messages} == {transport.name}
        (_, smalls), (_, larges) = there.messages[1:3]
        assert not memoryview(smalls[1]).readonly
        assert not memoryview(larges[2]).readonly

    def test_huge_frames_arrive_as_sent(self, open_transport: Open) -> None:
        transport, to, _, there, _ = open_transport()
        huge = bytes(range(250)) * (HUGE // 250)
        transport.send(to, [b"", huge, b"!"])
        transport.send(to, [b"small"])
        first, second = there.has(2)
        assert are_same(first, [b"", huge, b"!"])
        assert second == [b"small"]

    def test_many_frames_arrive(self, open_transport: Open) -> None:
        transport, to, _, there, _ = open_transport()
        transport.send(to, [b"x"] * MANY)
        transport.send(to, [b"small"])
        many, small = there.has(2)
        assert len(many) == MANY
        assert small == [b"small"]

    def test_each_message_arrives_once(self, open_transport: Open) -> None:
        transport, to, _, there, _ = open_transport()
        numbers = [[str(number).encode()] for number in range(1000)]
        for each in numbers:
            transport.send(to, each)
        transport.send(to, [b"last"])
        assert there.has(1001) == [*numbers, [b"last"]]

    def test_messages_of_each_thread_arrive_in_order(self, open_transport: Open) -> None:
        transport, to, _, there, _ = open_transport()

        def send(thread: int) -> None:
            for number in range(200):
                transport.send(to, [b"%d" % thread, b"%d" % number])

        in_threads(4, send)
        found = there.has(800)
        for thread in range(4):
            sent = [int(number) for of, number in found if int(of) == thread]
            assert sent == [*range(200)]

    def test_sending_does_not_block(self, open_transport: Open) -> None:
        transport, to, _, there, _ = open_transport()
        transport.send(to, [b"first"])
        there.has(1)
        if there.thread == threading.get_ident():
            pytest.skip("the receiver takes a message in the sender's thread")
        there.gate.clear()
        large = bytes(1_000_000)
        for _ in range(20):
            transport.send(to, [b"", large])
        assert len(there.messages) == 1
        there.gate.set()
        assert len(there.has(21)) == 21

    def test_messages_sent_before_the_close_arrive(self, open_transport: Open) -> None:
        transport, to, _, there, _ = open_transport()
        for number in range(100):
            transport.send(to, [b"%d" % number])
        transport.close()
        assert [int(frames[0]) for frames in there.has(100)] == [*range(100)]
        until(lambda: bool(there.lost), "the end is not reported")
        assert [name for name, _ in there.lost] == [transport.name]

    # -- exchanges ----------------------------------------------------------------------------

    def _ask(self, link: Link, frames: Frames, timeout: float | None = PATIENCE) -> Frames:
        found = link.transport.exchange(link.to, [ASK, *frames], timeout)
        if found is None:
            pytest.skip("there are no exchanges")
        return found

    def test_each_reply_is_that_to_its_request(self, open_transport: Open) -> None:
        link = open_transport(lambda _, frames: copied(frames))
        self._ask(link, [b"first"])

        def ask(thread: int) -> None:
            for number in range(50):
                sent = [b"%d" % thread, bytes(number * 1000)]
                assert copied(self._ask(link, sent)) == sent

        in_threads(4, ask)

    def test_a_reply_may_come_later(self, open_transport: Open) -> None:
        replies: list[Future[Frames]] = []

        def answer(_: str, frames: Frames) -> Future[Frames]:
            reply: Future[Frames] = Future()
            replies.append(reply)
            timer = threading.Timer(0.01, reply.set_result, [[bytes(frames[0]) + b"!"]])
            timer.daemon = True
            timer.start()
            return reply

        link = open_transport(answer)
        assert copied(self._ask(link, [b"later"])) == [b"later!"]

    def test_an_exchange_ends_with_its_timeout(self, open_transport: Open) -> None:
        def answer(_: str, frames: Frames) -> Frames | Future[Frames]:
            return Future() if bytes(frames[0]) == b"never" else copied(frames)

        link = open_transport(answer)
        for _ in range(3):  # those that have been quick are tried too
            assert copied(self._ask(link, [b"x"]))[0] == b"x"
        began = time.monotonic()
        with pytest.raises(CallTimeoutError, match=r"0\.3 s"):
            self._ask(link, [b"never"], 0.3)
        assert time.monotonic() - began < 2.0
        assert copied(self._ask(link, [b"y"]))[0] == b"y"

    def test_close_ends_what_waits(self, open_transport: Open) -> None:
        self._ends(open_transport, lambda link: link.transport.close(), ClosedError)

    def test_exchanges_end_with_their_member(self, open_transport: Open) -> None:
        self._ends(open_transport, lambda link: link.other.close(), PeerLostError)

    def _ends(
        self, open_transport: Open, end: Callable[[Link], object], kind: type[Exception]
    ) -> None:
        link = open_transport(lambda *_: Future())
        if type(link.transport).exchange is Transport.exchange:
            pytest.skip("there are no exchanges")
        errors: list[Exception | None] = []

        def ask() -> None:
            try:
                if link.transport.exchange(link.to, [ASK], None) is None:
                    errors.append(None)
            except Exception as error:  # noqa: BLE001 - looked at below
                errors.append(error)

        caller = threading.Thread(target=ask, daemon=True)
        caller.start()
        until(lambda: bool(link.there.asked or errors), "nothing was asked")
        end(link)
        caller.join(PATIENCE)
        if errors == [None]:
            pytest.skip("there are no exchanges")
        assert [type(each) for each in errors] == [kind]

    # -- ends ---------------------------------------------------------------------------------

    def test_use_before_and_after(self, config: TransportConfig, open_transport: Open) -> None:
        record = default_registry().find("transport", config.backend)
        unopened: Any = default_registry().load(record)(config, member=Member())
        with pytest.raises(ClosedError):
            unopened.members()
        unopened.close()
        transport, to, _, there, _ = open_transport()
        assert sorted(transport.members()) == sorted({transport.name, to})
        with pytest.raises(PeerLostError, match="nobody"):
            transport.send("nobody", [b"?"])
        transport.close()
        transport.close()
        for use in (transport.members, lambda: transport.send(to, [b"?"])):
            with pytest.raises(ClosedError):
                use()
        until(lambda: bool(there.lost), "the end is not reported")


def _transports(config: TransportConfig, cls: Any, opened: ExitStack) -> list[Transport]:
    """Return the transports of two members that will meet, to be closed at the end."""
    names = ("m0", "m1")
    meeting = opened.enter_context(cls.meeting(config, names))
    transports = [
        cls(
            config,
            member=Member(name, rank, rank, 2, names, meeting.address, meeting.keys.get(name, {})),
        )
        for rank, name in enumerate(names)
    ]
    transports = [
        RequestLink(each) if isinstance(each, RequestTransport) else each for each in transports
    ]
    for each in transports:
        opened.callback(each.close)
    return transports
