"""A transport by itself: one member that sends to itself, with a handler of the test's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from typing_extensions import Buffer

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError, RemoteError
from pparallel.interfaces.transport import Frames, Handler, Transport, TransportConfig
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel.testing.transport.base import TransportTests

Open = Callable[[Handler], Transport]


def echo(sender: str, frames: Frames) -> Frames:
    return [sender.encode(), *frames]


def copied(frames: Frames) -> list[bytes]:
    return [bytes(each) for each in frames]


class Later:
    """A handler whose replies come when the test says so."""

    def __init__(self) -> None:
        self.replies: list[Future[Frames]] = []

    def __call__(self, sender: str, frames: Frames) -> Future[Frames]:
        self.replies.append(Future())
        return self.replies[-1]

    def has(self, count: int) -> None:
        """Wait until *count* requests have come."""
        until(lambda: len(self.replies) >= count, f"{count} requests did not arrive")


class AloneTests(TransportTests):
    """Tests of what stands below calls, on a transport that the RPC layer does not hold."""

    @pytest.fixture
    def open_transport(
        self, config: TransportConfig, build: Callable[..., Transport]
    ) -> Iterator[Open]:
        """Open a transport of one member with a handler."""
        opened: list[Transport] = []

        def open_transport(handler: Handler) -> Transport:
            transport = build(config)
            opened.append(transport)
            transport.open(handler)
            return transport

        yield open_transport
        for each in opened:
            each.close()

    def test_frames_arrive_as_sent(self, open_transport: Open) -> None:
        transport = open_transport(echo)
        me = transport.name
        many = [bytes([n % 251]) * n for n in range(300)]
        small: list[Buffer] = [b"", bytearray(), b"x", b""]
        messages: list[Frames] = [[b"one"], small, [bytes(3_000_000), b"!"], many]
        for sent in messages:
            expected = [me.encode(), *sent]
            assert copied(transport.request(me, sent, PATIENCE).result()) == expected
            assert copied(transport.call(me, sent, PATIENCE)) == expected
        view = memoryview(bytearray(range(100))).cast("B", (10, 10))
        assert copied(transport.call(me, [view], PATIENCE))[1] == bytes(range(100))

    def test_each_reply_is_that_to_its_request(self, open_transport: Open) -> None:
        later = Later()
        transport = open_transport(later)
        futures = [transport.request(transport.name, [b"?"], PATIENCE) for _ in range(300)]
        later.has(300)
        replies = dict(enumerate(later.replies))
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

        transport = open_transport(handler)
        for what in (b"now", b"later"):
            with pytest.raises(RemoteError, match="a broken handler"):
                transport.request(transport.name, [what], PATIENCE).result(2 * PATIENCE)
            with pytest.raises(RemoteError, match="LookupError"):
                transport.call(transport.name, [what], PATIENCE)

    def test_a_late_reply_is_dropped(self, open_transport: Open) -> None:
        later = Later()
        transport = open_transport(later)
        error = transport.request(transport.name, [b"?"], 0.02).exception(PATIENCE)
        assert isinstance(error, CallTimeoutError)

        def call(_: int) -> None:
            with pytest.raises(CallTimeoutError, match=r"0\.03 s"):
                transport.call(transport.name, [b"?"], 0.03)

        in_threads(1, call)
        later.has(2)
        next_one = transport.request(transport.name, [b"?"], PATIENCE)
        later.has(3)
        for n, reply in enumerate(later.replies):
            reply.set_result([b"late", b"late", b"in time"][n : n + 1])
        assert copied(next_one.result(PATIENCE)) == [b"in time"]

    def test_a_request_does_not_wait_for_its_reply(self, open_transport: Open) -> None:
        later = Later()
        transport = open_transport(later)
        futures = in_threads(1, lambda _: [transport.request(transport.name, []) for _ in "12"])[0]
        later.has(2)
        assert not any(each.done() for each in futures)

    def test_close_ends_what_waits(self, open_transport: Open) -> None:
        later = Later()
        transport = open_transport(later)
        sent = transport.request(transport.name, [b"?"])
        errors: list[BaseException] = []

        def call() -> None:
            try:
                transport.call(transport.name, [b"?"])
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
        self, config: TransportConfig, build: Callable[..., Transport], open_transport: Open
    ) -> None:
        unopened = build(config)
        with pytest.raises(ClosedError):
            unopened.request(unopened.name, [b"?"])
        transport = open_transport(echo)
        assert transport.members() == [transport.name]
        with pytest.raises(PeerLostError, match="nobody"):
            transport.request("nobody", [b"?"], PATIENCE).result()
        transport.close()
        transport.close()
        for use in (transport.members, lambda: transport.request(transport.name, [b"?"])):
            with pytest.raises(ClosedError):
                use()
        unopened.close()
