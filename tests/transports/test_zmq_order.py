"""Requests of one thread on ZeroMQ: their order, and their end."""

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
from pparallel_zmq import ZmqTransportConfig
from pparallel_zmq.transport import ZmqTransport

NAMES = ("a", "b")
MANY = 50


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


def test_none_is_left_behind_when_nobody_waits(job: Job) -> None:
    for n in range(MANY):
        job.a.request("b", [b"never", b"%d" % n])
    until(lambda: len(job.asked) == MANY, "some requests are held back")


def test_the_order_of_a_thread_is_kept_among_all_sizes(job: Job) -> None:
    chance = random.Random(0)
    sizes = [chance.choice([1, 1, 1, 2048, 2**17, 3 * 2**20]) for _ in range(100)]
    futures = [
        job.a.request("b", [b"%010d" % n + bytes(size)], PATIENCE) for n, size in enumerate(sizes)
    ]
    # One that waits goes past what is large, and never past what its thread has sent before.
    assert job.a.call("b", [b"%010d" % len(sizes)], PATIENCE)
    assert [len(each.result()[0]) - 10 for each in futures] == sizes  # type: ignore[arg-type] # bytes
    assert job.asked == [b"%010d" % n for n in range(len(sizes) + 1)]


def test_what_is_given_up_is_named_after_it_was_asked(job: Job) -> None:
    futures = [job.a.request("b", [b"never"], 0.05) for _ in range(MANY)]
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
