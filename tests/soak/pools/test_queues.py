"""Queues whose senders and receivers are killed while they send and receive."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable

from queue_children import MB, Child

from pparallel.patterns.queues import SimpleQueue

CHURN_SEND = """
import random
turn = 0
while True:
    q.put((os.getpid(), turn, b"x" * random.choice([10, 500, 20_000])))
    turn += 1
"""
CHURN_RECEIVE = """
last = {}
while True:
    pid, turn, data = q.get()
    assert turn > last.get(pid, -1), "out of order"
    assert data == b"x" * len(data)
    last[pid] = turn
"""


def test_senders_and_receivers_are_killed_at_any_instant(
    rounds: Iterable[random.Random],
) -> None:
    with SimpleQueue(memory=64 * MB) as q:
        codes = [CHURN_SEND, CHURN_SEND, CHURN_RECEIVE, CHURN_RECEIVE]
        children = [Child(code, q) for code in codes]
        try:
            for dice in rounds:
                threading.Event().wait(dice.random() * 0.1)
                index = dice.randrange(len(codes))
                assert [each.process.poll() for each in children] == [None] * len(codes)
                children[index].kill()
                children[index] = Child(codes[index], q)
            for each in children:
                each.kill()
        finally:
            for each in children:
                each.kill()
        last: dict[int, int] = {}
        while not q.empty():
            pid, turn, _ = q.get(0)
            assert turn > last.get(pid, -1)
            last[pid] = turn
        q.put(["usable", b"y" * MB])
        assert q.get(0) == ["usable", b"y" * MB]
