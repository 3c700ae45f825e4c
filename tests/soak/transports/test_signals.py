"""Signals that arrive while members call: handlers that return, at random moments."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import ipc_peer
import pytest
import zmq_meetings
import zmq_peer

from pparallel.errors import CallTimeoutError
from pparallel.interfaces.transport import Frames, Transport
from pparallel.testing.patience import PATIENCE
from pparallel.testing.threads import in_threads

Pair = Callable[[Callable[[str, Frames], Any]], AbstractContextManager[tuple[Transport, Transport]]]


@contextmanager
def on_zmq(handler: Callable[[str, Frames], Any]) -> Iterator[tuple[Transport, Transport]]:
    names = ["a", "b"]
    with zmq_meetings.meeting(names) as met:
        both = [zmq_peer.transport(name, names, met) for name in names]
        try:
            in_threads(2, lambda n: both[n].open(handler))
            yield both[0], both[1]
        finally:
            for each in both:
                each.close()


@contextmanager
def alarms(every: float) -> Iterator[None]:
    """Have a signal arrive every so many seconds inside."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, every, every)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def answer(sender: str, frames: Frames) -> Frames | Future[Frames]:
    return Future() if bytes(memoryview(frames[0])) == b"never" else frames


def size(chance: random.Random) -> int:
    return chance.choice([0, 1, 1000, 20_000, 300_000, 3_000_000])


@pytest.mark.parametrize("pair", [ipc_peer.pair, on_zmq])
def test_calls_are_answered_and_time_outs_kept_under_signals(
    pair: Pair, rounds: Iterable[random.Random]
) -> None:
    with pair(answer) as (a, b):
        for chance in rounds:
            with alarms(chance.uniform(0.0003, 0.005)):
                for _ in range(20):
                    sent = [
                        [b"%d" % n, bytes(size(chance))] for n in range(chance.randrange(1, 20))
                    ]
                    futures = [a.request(b.name, each, PATIENCE) for each in sent]
                    found = [*a.call(b.name, sent[0], PATIENCE)]
                    assert [bytes(memoryview(each)) for each in found] == sent[0]
                    for each, expected in zip(futures, sent, strict=True):
                        reply = each.result(PATIENCE)
                        assert [bytes(memoryview(each)) for each in reply] == expected
                with pytest.raises(CallTimeoutError):
                    a.call(b.name, [b"never"], chance.uniform(0.01, 0.2))
