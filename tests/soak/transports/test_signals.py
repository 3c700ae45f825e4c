"""Signals that arrive while members call: handlers that return, at random moments."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import pparallel
from pparallel.errors import CallTimeoutError
from pparallel.testing.patience import PATIENCE

if TYPE_CHECKING:
    from pparallel.builder import Runtime

SIZES = [0, 1, 1000, 20_000, 300_000, 3_000_000]


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


def same(frames: list[bytes]) -> list[bytes]:
    return frames


def call_under_signals(rt: Runtime, seed: float) -> None:
    group, chance = rt.group(), random.Random(seed)
    group.barrier(PATIENCE)
    if rt.rank == 0:
        with alarms(chance.uniform(0.0003, 0.005)):
            for _ in range(20):
                sent = [
                    [b"%d" % n, bytes(chance.choice(SIZES))] for n in range(chance.randrange(1, 20))
                ]
                futures = [group.rpc_async(1, same, args=(each,)) for each in sent]
                assert group.rpc_sync(1, same, args=(sent[0],)) == sent[0]
                assert [each.wait() for each in futures] == sent
            with pytest.raises(CallTimeoutError):
                group.rpc_sync(1, time.sleep, timeout=chance.uniform(0.01, 0.2), args=(0.5,))
    group.barrier(PATIENCE)


@pytest.mark.parametrize("transport", ["ipc", "zmq"])
def test_calls_are_answered_and_time_outs_kept_under_signals(
    transport: str, rounds: Iterable[random.Random]
) -> None:
    job = {
        "members": 2,
        "launcher": {"backend": "process"},
        "transport": {"backend": transport},
        "reducer": {"backend": "local"},
    }
    for chance in rounds:
        assert pparallel.launch(job, call_under_signals, [chance.random()]) == [None] * 2
