"""A transport by itself, to the same member and to another, with a handler of the test's own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from typing_extensions import Buffer

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError, RemoteError
from pparallel.interfaces.request_transport import Handler, RequestTransport
from pparallel.interfaces.transport import Frames, TransportConfig
from pparallel.registry import default_registry
from pparallel.runtime.member import Member
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel.testing.transport.base import TransportTests

HUGE = 70_000_000  #: bytes; more than a socket or a ZeroMQ message of one piece should be given


class Link(NamedTuple):
    """A transport that is open, and a member to send to."""

    transport: RequestTransport
    to: str


Open = Callable[[Handler], Link]


def echo(sender: str, frames: Frames) -> Frames:
    return [sender.encode(), *frames]


def are_same(found: Frames, expected: Frames) -> bool:
    """Compare here: pytest would take minutes to explain megabytes."""
    return copied(found) == copied(expected)


def copied(frames: Frames) -> list[bytes]:
    return [bytes(each) for each in frames]


class Later:
    """A handler whose replies come when the test says so."""

    def __init__(self) -> None:
        self.replies: list[tuple[bytes, Future[Frames]]] = []  # to what, in any order

    def __call__(self, sender: str, frames: Frames) -> Future[Frames]:
        reply: Future[Frames] = Future()
        self.replies.append((b"".join(map(bytes, frames)), reply))
        return reply

    def has(self, count: int) -> None:
        """Wait until *count* requests have come."""
        until(lambda: len(self.replies) >= count, f"{count} requests did not arrive")


class AloneTests(TransportTests):
    """Tests of what stands below calls, on transports that the RPC layer does not hold."""

    @pytest.fixture(params=["to itself", "to another"])
    def open_transport(
        self,
        config: TransportConfig,
        build: Callable[..., RequestTransport],
        request: pytest.FixtureRequest,
    ) -> Iterator[Open]:
        """Open a transport with a handler, and one beside it where another member is sent to."""
        size = 1 if request.param == "to itself" else 2
        if size > 1 and "threads" not in default_registry().find("transport", config.backend).reach:
            pytest.skip("there cannot be two members in one process")
        with ExitStack() as opened:

            def open_transport(handler: Handler) -> Link:
                transports = _transports(config, build(config), size, opened)
                in_threads(size, lambda n: transports[n].open(handler))
                return Link(transports[0], transports[-1].name)

            yield open_transport

    def test_frames_arrive_as_sent(self, open_transport: Open) -> None:
        transport, to = open_transport(echo)
        me = transport.name.encode()
        many = [bytes([n % 251]) * n for n in range(300)]
        small: list[Buffer] = [b"", bytearray(), b"x", b""]
        large: list[Buffer] = [bytes(range(250)) * 12_000, b"!", bytearray(range(250)) * 400]
        messages: list[Frames] = [[b"one"], small, large, many]
        for sent in messages:
            expected = [me, *sent]
            assert are_same(transport.request(to, sent, PATIENCE).result(), expected)
            assert are_same(transport.call(to, sent, PATIENCE), expected)
        view = memoryview(bytearray(range(100))).cast("B", (10, 10))
        assert copied(transport.call(to, [view], PATIENCE))[1] == bytes(range(100))

    def test_huge_frames_arrive_as_sent(self, open_transport: Open) -> None:
        transport, to = open_transport(echo)
        huge = bytes(range(250)) * (HUGE // 250)
        behind = transport.request(to, [huge, b"!"], PATIENCE)
        assert copied(transport.call(to, [b"small"], PATIENCE))[1] == b"small"
        assert are_same(behind.result(), [transport.name.encode(), huge, b"!"])

    def test_each_request_is_handled_once(self, open_transport: Open) -> None:
        seen: Counter[bytes] = Counter()

        def count(sender: str, frames: Frames) -> Frames:
            seen[bytes(frames[0])] += 1
            return frames

        transport, to = open_transport(count)
        numbers = [str(number).encode() for number in range(1000)]
        futures = [transport.request(to, [each], PATIENCE) for each in numbers]
        assert [bytes(each.result()[0]) for each in futures] == numbers
        for each in numbers[:200]:
            assert bytes(transport.call(to, [b"call", each], PATIENCE)[1]) == each
        assert seen == {**dict.fromkeys(numbers, 1), b"call": 200}

    def test_each_reply_is_that_to_its_request(self, open_transport: Open) -> None:
        later = Later()
        transport, to = open_transport(later)
        futures = [transport.request(to, [b"%d" % n], PATIENCE) for n in range(300)]
        later.has(300)
        replies = {int(asked): reply for asked, reply in later.replies}
        answered = [futures[n] for n in range(0, 300, 2)]
        for n in reversed(range(300)):
            if n % 2 == 0:
                replies[n].set_result([bytes(n)])
        assert [len(copied(each.result(PATIENCE))[0]) for each in answered] == [*range(0, 300, 2)]
        assert not any(futures[n].done() for n in range(1, 300, 2))

    def test_a_handler_that_fails(self, open_transport: Open) -> None:
        def handler(sender: str, frames: Frames) -> Frames | Future[Frames]:
            if bytes(frames[0]) == b"now":
                message = "a broken handler"
                raise LookupError(message)
            later: Future[Frames] = Future()
            later.set_exception(LookupError("a broken handler"))
            return later

        transport, to = open_transport(handler)
        for what in (b"now", b"later"):
            with pytest.raises(RemoteError, match="a broken handler"):
                transport.request(to, [what], PATIENCE).result(2 * PATIENCE)
            with pytest.raises(RemoteError, match="LookupError"):
                transport.call(to, [what], PATIENCE)

    def test_a_late_reply_is_dropped(self, open_transport: Open) -> None:
        later = Later()
        transport, to = open_transport(later)
        error = transport.request(to, [b"?"], 0.02).exception(PATIENCE)
        assert isinstance(error, CallTimeoutError)

        def call(_: int) -> None:
            with pytest.raises(CallTimeoutError, match=r"0\.03 s"):
                transport.call(to, [b"?"], 0.03)

        in_threads(1, call)
        later.has(2)
        next_one = transport.request(to, [b"!"], PATIENCE)
        later.has(3)
        for asked, reply in later.replies:
            reply.set_result([b"in time" if asked == b"!" else b"late"])
        assert copied(next_one.result(PATIENCE)) == [b"in time"]

    def test_a_request_does_not_wait_for_its_reply(self, open_transport: Open) -> None:
        later = Later()
        transport, to = open_transport(later)
        futures = in_threads(1, lambda _: [transport.request(to, []) for _ in "12"])[0]
        later.has(2)
        assert not any(each.done() for each in futures)

    def test_close_ends_what_waits(self, open_transport: Open) -> None:
        later = Later()
        transport, to = open_transport(later)
        sent = transport.request(to, [b"?"])
        errors: list[BaseException] = []

        def call() -> None:
            try:
                transport.call(to, [b"?"])
            except ClosedError as error:
                errors.append(error)

        caller = threading.Thread(target=call, daemon=True)
        caller.start()
        later.has(2)
        transport.close()
        assert isinstance(sent.exception(PATIENCE), ClosedError)
        caller.join(PATIENCE)
        assert len(errors) == 1

    def test_use_before_and_after(
        self, config: TransportConfig, build: Callable[..., RequestTransport], open_transport: Open
    ) -> None:
        unopened = build(config)
        with pytest.raises(ClosedError):
            unopened.request(unopened.name, [b"?"])
        transport, to = open_transport(echo)
        assert sorted(transport.members()) == sorted({transport.name, to})
        with pytest.raises(PeerLostError, match="nobody"):
            transport.request("nobody", [b"?"], PATIENCE).result()
        transport.close()
        transport.close()
        for use in (transport.members, lambda: transport.request(to, [b"?"])):
            with pytest.raises(ClosedError):
                use()
        unopened.close()


def _transports(
    config: TransportConfig, alone: RequestTransport, size: int, opened: ExitStack
) -> list[RequestTransport]:
    """Return the transports of members that will meet, to be closed at the end."""
    transports = [alone]
    if size > 1:
        cls: Any = type(alone)
        names = tuple(f"m{rank}" for rank in range(size))
        meeting = opened.enter_context(cls.meeting(config, names))
        transports = [
            cls(
                config,
                member=Member(
                    name, rank, rank, size, names, meeting.address, meeting.keys.get(name, {})
                ),
            )
            for rank, name in enumerate(names)
        ]
    for each in transports:
        opened.callback(each.close)
    return transports
