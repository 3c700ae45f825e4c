"""What stands for a transport, the time and threads around the parts of the RPC layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fake_timers import FakeTimers

from pparallel.interfaces.transport import Frames
from pparallel.runtime.rpc.codec import CALL, OK, RESULT, SERVICE, Codec, Data, Encoded, Item
from pparallel.runtime.rpc.peer import Peer
from pparallel_serializers import PickleSerializerConfig
from pparallel_serializers.pickle import PickleSerializer


class FakeTransport:
    """Keeps what is sent, and fails or answers as a test says."""

    def __init__(self) -> None:
        self.sent: list[Frames] = []
        self.when_sending: Callable[[], object] | None = None  # called once
        self.reply: Callable[[Frames], Frames | None] = lambda frames: frames

    def send(self, to: str, frames: Frames) -> None:
        act, self.when_sending = self.when_sending, None
        if act is not None:
            act()
        self.sent.append(frames)

    def exchange(self, to: str, frames: Frames, timeout: float | None) -> Frames | None:
        return self.reply(frames)


class Answered:
    """Takes the result of one request."""

    def __init__(self) -> None:
        self.item: Item | None = None
        self.frames: Frames = ()
        self.error: BaseException | None = None

    def answer(self, item: Item, frames: Frames) -> None:
        assert not self.done
        self.item, self.frames = item, frames

    def fail(self, error: BaseException) -> None:
        assert not self.done
        self.error = error

    @property
    def done(self) -> bool:
        return self.item is not None or self.error is not None


class FakePeer:
    """A peer with all that it needs, and the messages that it has sent."""

    def __init__(self, **options: Any) -> None:
        self.transport, self.timers = FakeTransport(), FakeTimers()
        self.codec = Codec(PickleSerializer(PickleSerializerConfig()), "me")
        options = {"limit": 2**20, **options}
        self.peer = Peer(
            "other",
            self.transport,
            self.codec,
            self.timers,
            clock=lambda: self.timers.now,
            **options,
        )

    def call(self, flags: int = 0, timeout: float | None = 10.0, data: bytes = b"call") -> Answered:
        sink = Answered()
        self.peer.call_async(sink, flags, made(data), (), timeout)
        return sink

    def messages(self) -> list[list[Item]]:
        """Return the items of each message that was sent since this was called last."""
        found = [self.codec.items(frames[0])[1:] for frames in self.transport.sent]
        self.transport.sent.clear()
        return found

    def ids(self) -> list[list[int]]:
        return [[item[1] for item in items] for items in self.messages()]

    def arrive(self, *items: Item, mark: int = 0, frames: Frames = ()) -> list[Encoded]:
        return self.peer.received([mark, *items], frames)


def raising(error: BaseException) -> Callable[[], object]:
    def act() -> None:
        raise error

    return act


def result(number: int, value: object = None) -> Item:
    return (RESULT, number, OK, value, 0, 0)


def made(data: bytes) -> Data:
    """Return the data of a call that takes as many bytes as *data*."""
    return None, (data,), None, len(data)


def call(number: int, thread: int = 1, flags: int = 0) -> Item:
    return (CALL, number, thread, 0.0, flags, None, made(b"call"), 0)


def ask(number: int) -> Item:
    return (SERVICE, number, "key", None, 0, 0)
