"""Small messages that leave as one on ZeroMQ."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack

import pytest
from zmq_peer import transport

from pparallel.errors import CallTimeoutError
from pparallel.interfaces.transport import Frames
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel_zmq import ZmqTransportConfig, wire
from pparallel_zmq.port import SMALL, TOGETHER, Port
from pparallel_zmq.transport import ZmqTransport
from pparallel_zmq.wire import BadMessageError, Kind, Limits

NAMES = ("a", "b")
LIMITS = Limits(frames=100, size=2**20, piece=2**20)


class Job:
    """Two members; the second notes what it is asked."""

    def __init__(self, a: ZmqTransport, b: ZmqTransport) -> None:
        self.a, self.b = a, b
        self.asked: list[bytes] = []
        self.later: list[Future[Frames]] = []

    def handle(self, sender: str, frames: Frames) -> Frames | Future[Frames]:
        self.asked.append(bytes(memoryview(frames[0])[:10]))
        if self.asked[-1] not in (b"never", b"later"):
            return frames
        self.later.append(Future())
        return self.later[-1]


@pytest.fixture
def job() -> Iterator[Job]:
    with ZmqTransport.meeting(ZmqTransportConfig(address="ipc"), NAMES) as met, ExitStack() as ends:
        found = Job(*(transport(name, NAMES, met) for name in NAMES))
        for each in (found.a, found.b):
            ends.callback(each.close)
        in_threads(2, lambda n: (found.a, found.b)[n].open(found.handle))
        yield found


@pytest.fixture
def sent(job: Job, monkeypatch: pytest.MonkeyPatch) -> list[Kind]:
    """What leaves from now on, message by message."""
    found: list[Kind] = []
    once = Port._try

    def try_(port: Port, route: bytes, parts: list[wire.Raw]) -> bool:
        found.append(Kind(parts[0][0]))
        return once(port, route, parts)

    monkeypatch.setattr(Port, "_try", try_)
    return found


def number(n: int) -> bytes:
    return b"%d" % n


def test_many_requests_leave_in_few_messages_and_so_do_the_replies(
    job: Job, sent: list[Kind]
) -> None:
    numbers = [number(n) for n in range(20 * TOGETHER)]
    futures = [job.a.request("b", [each], PATIENCE) for each in numbers]
    assert [bytes(memoryview(each.result()[0])) for each in futures] == numbers
    assert job.asked == numbers
    assert sent.count(Kind.MANY) > 0
    assert len(sent) < len(numbers) / 2  # of 640 that there would be


def test_few_requests_leave_at_once(job: Job, sent: list[Kind]) -> None:
    for n in range(10):
        assert job.a.request("b", [number(n)], PATIENCE).result()
    carried = [each for each in sent if each in (Kind.REQUEST, Kind.REPLY, Kind.MANY)]
    assert carried == [Kind.REQUEST, Kind.REPLY] * 10


def test_none_is_left_behind_when_nobody_waits(job: Job) -> None:
    for n in range(3 * TOGETHER + 5):
        job.a.request("b", [b"never", number(n)])
    until(lambda: len(job.asked) == 3 * TOGETHER + 5, "some requests are held back")


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_a_thread_is_kept_among_all_sizes(job: Job, seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([1, 1, 1, SMALL, 2**17, 3 * 2**20]) for _ in range(150)]
    futures = [
        job.a.request("b", [b"%010d" % n + bytes(size)], PATIENCE) for n, size in enumerate(sizes)
    ]
    # One that waits goes past what is large, and never past what its thread has sent before.
    assert job.a.call("b", [b"%010d" % len(sizes)], PATIENCE)
    assert [len(each.result()[0]) - 10 for each in futures] == sizes  # type: ignore[arg-type] # bytes
    assert job.asked == [b"%010d" % n for n in range(len(sizes) + 1)]


def test_what_is_given_up_is_named_after_it_was_asked(job: Job) -> None:
    futures = [job.a.request("b", [b"never"], 0.05) for _ in range(TOGETHER + 3)]
    assert all(isinstance(each.exception(PATIENCE), CallTimeoutError) for each in futures)
    assert job.a.call("b", [b"again"], PATIENCE) == [b"again"]
    assert job.asked == [b"never"] * len(futures) + [b"again"]


def test_closing_sends_the_replies_that_are_known(job: Job) -> None:
    futures = [job.a.request("b", [b"later"], PATIENCE) for _ in range(5)]
    until(lambda: len(job.later) == len(futures), "not all has come")
    for each in job.later:
        each.set_result([b"known"])
    job.b.close()
    assert [each.result(PATIENCE) for each in futures] == [[b"known"]] * len(futures)


@pytest.mark.parametrize(
    "inside",
    [
        wire.say(Kind.HELLO, b"hello"),
        wire.say(Kind.MANY, wire.say(Kind.REQUEST, b"x", number=1)),
        wire.pack(Kind.REQUEST, 1, [bytes(2**17)], LIMITS)[0],
        b"",
        b"nothing that is known",
    ],
)
def test_only_small_messages_of_one_kind_come_together(inside: bytes) -> None:
    sound = wire.say(Kind.REQUEST, b"sound", number=7)
    together = wire.unpack(wire.say(Kind.MANY, sound, sound), LIMITS)
    assert [each.number for each in wire.many(together, Kind.REQUEST, LIMITS)] == [7, 7]
    with pytest.raises(BadMessageError):
        wire.many(together, Kind.REPLY, LIMITS)
    with pytest.raises(BadMessageError):
        wire.many(wire.unpack(wire.say(Kind.MANY, sound, inside), LIMITS), Kind.REQUEST, LIMITS)
