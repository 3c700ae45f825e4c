"""Queues between processes, some of which are killed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections import Counter, defaultdict
from typing import Any

import pytest
from queue_children import MB, Child, blocks, child, running
from queue_children import q as q

import pparallel
from pparallel.errors import TaskTimeoutError
from pparallel.patterns.queues import SimpleP2PQueue, SimpleQueue
from pparallel.testing.patience import PATIENCE, until
from pparallel_process import ProcessPoolConfig

# -- ways to other processes ----------------------------------------------------------------------


def echo(inward: SimpleQueue, outward: SimpleQueue) -> str:
    for thing in iter(inward.get, None):
        outward.put((os.getpid(), thing))
    return "done"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_it_is_an_argument_of_a_process(method: Any) -> None:
    context = multiprocessing.get_context(method)
    with SimpleQueue(ctx=context) as inward, SimpleQueue() as outward:
        process = context.Process(target=echo, args=(inward, outward))
        process.start()
        for thing in (1, b"x" * 50_000):
            inward.put(thing)
            assert outward.get(PATIENCE * 2) == (process.pid, thing)
        inward.put(None)
        process.join(PATIENCE)
        assert process.exitcode == 0
        process.close()


def test_it_is_an_argument_of_a_task() -> None:
    with (
        pparallel.build(ProcessPoolConfig(size=2)) as pool,
        SimpleQueue() as inward,
        SimpleP2PQueue() as outward,
    ):
        tasks = [pool.apply_async(echo, (inward, outward)) for _ in range(2)]
        for turn in range(50):
            inward.put(turn)
        found = [outward.get(PATIENCE) for _ in range(50)]
        assert sorted(thing for _, thing in found) == list(range(50))
        assert os.getpid() not in {pid for pid, _ in found}
        for _ in tasks:
            inward.put(None)
        assert [each.get(PATIENCE) for each in tasks] == ["done"] * 2


def member(rt: Any, q: SimpleQueue) -> Any:
    if rt.rank == 0:
        return sorted(q.get(PATIENCE) for _ in range(2))
    q.put(rt.rank)
    return None


def test_it_is_an_argument_of_launch(q: SimpleQueue) -> None:
    assert pparallel.launch({"members": 3}, member, (q,))[0] == [1, 2]


def test_a_queue_travels_through_a_queue(q: SimpleQueue) -> None:
    code = "answers = q.get(); answers.put(os.getpid()); answers.close()"
    with child(code, q) as other, SimpleQueue() as answers:
        q.put(answers)
        assert answers.get(PATIENCE) == other.process.pid


def test_a_receiver_passes_it_on(q: SimpleQueue) -> None:
    code = """
import subprocess
third = "import pickle, sys; pickle.load(sys.stdin.buffer).put('from the third')"
subprocess.run([sys.executable, "-c", third], input=pickle.dumps(q), check=True)
"""
    with child(code, q) as other:
        assert q.get(PATIENCE) == "from the third"
        assert other.wait() == 0


def test_a_queue_whose_sender_has_closed_it_cannot_be_received(q: SimpleQueue) -> None:
    sent = pickle.dumps(q)
    q.close()
    with pytest.raises(OSError, match=f"process {os.getpid()}, which sent a queue, has ended or"):
        pickle.loads(sent)
    with SimpleQueue() as other:
        with pytest.raises(OSError, match="let go of it: keep it until it has arrived"):
            pickle.loads(sent)  # the numbers of its descriptors are another queue's
        assert other.empty()


def test_a_forked_child_has_its_own(q: SimpleQueue) -> None:
    """In a process of its own, which has no threads that a fork could hurt."""
    code = """
import threading
waiting = threading.Thread(target=lambda: print(q.get(), flush=True))
waiting.start()
pid = os.fork()
if not pid:
    try:
        queues[1].get(timeout=0.01)
    except TimeoutError:
        queues[1].put(["from the child", b"x" * 30_000])
    q.close()
    os._exit(0)
os.waitpid(pid, 0)
q.put("the parent's thread waits still")
"""
    with SimpleQueue() as second, child(code, q, second) as other:
        assert other.line() == "the parent's thread waits still"
        assert other.wait() == 0
        assert second.get(0) == ["from the child", b"x" * 30_000]


# -- many of each, and deaths ---------------------------------------------------------------------

SENDER = """
start = int(sys.stdin.buffer.readline())
for turn in range(int(sys.stdin.buffer.readline())):
    q.put((start, turn, b"x" * (turn % 7 * 5000 if turn % 50 == 0 else turn % 200)))
"""
RECEIVER = """
for message in iter(q.get, None):
    queues[1].put((os.getpid(), *message[:2], len(message[2])))
"""


def test_many_senders_and_many_receivers() -> None:
    count = 300
    with SimpleQueue() as q, SimpleQueue() as results:
        senders = [Child(SENDER, q) for _ in range(2)]
        receivers = [Child(RECEIVER, q, results) for _ in range(2)]
        try:
            for index, each in enumerate(senders):
                each.input.write(f"{index}\n{count}\n".encode())
                each.input.flush()
            found = [results.get(PATIENCE) for _ in range(2 * count)]
            assert Counter((start, turn) for _, start, turn, _ in found) == Counter(
                (start, turn) for start in range(2) for turn in range(count)
            )
            order: dict[tuple[int, int], list[int]] = defaultdict(list)
            for pid, start, turn, length in found:
                order[pid, start].append(turn)
                assert length == (turn % 7 * 5000 if turn % 50 == 0 else turn % 200)
            assert all(turns == sorted(turns) for turns in order.values())
            for _ in receivers:
                q.put(None)
            assert [each.wait() for each in senders + receivers] == [0] * 4
        finally:
            for each in senders + receivers:
                each.kill()
        assert blocks(q) == 0


def test_many_threads(q: SimpleQueue) -> None:
    count = 300
    found: list[tuple[int, int]] = []

    def send(index: int) -> None:
        for turn in range(count):
            q.put((index, turn))

    def receive() -> None:
        found.extend(iter(lambda: q.get(PATIENCE), None))

    with running(receive, receive):
        with running(lambda: send(0), lambda: send(1), lambda: send(2)):
            pass
        q.put(None)
        q.put(None)
    assert sorted(found) == [(index, turn) for index in range(3) for turn in range(count)]


def test_what_a_dead_process_put_still_arrives(q: SimpleQueue) -> None:
    code = """
q.put("small")
q.put(bytes(range(256)) * 500)
os.kill(os.getpid(), 9)
"""
    with child(code, q) as dead:
        assert dead.wait() == -signal.SIGKILL
    assert q.get(0) == "small"
    assert q.get(0) == bytes(range(256)) * 500
    assert blocks(q) == 0


def test_a_receiver_that_dies_harms_nobody(q: SimpleQueue) -> None:
    code = "held = [q.get(), q.get()]; print('has', flush=True); q.get(); q.get()"
    with child(code, q) as dead:
        q.put(b"x" * 50_000)
        q.put("y")
        assert dead.line() == "has"
        dead.kill()
    q.put("still")
    q.put(b"here" * 10_000)
    assert q.get(0) == "still"
    assert q.get(0) == b"here" * 10_000


def test_the_memory_of_a_receiver_that_died_is_used_again() -> None:
    import numpy as np

    big = np.ones(3 * MB, np.uint8)
    with SimpleQueue(memory=4 * MB) as q:
        with child("held = q.get(); print('has', flush=True); q.get()", q) as dead:
            q.put(big)
            assert dead.line() == "has"
            with pytest.raises(TaskTimeoutError):
                q.put(big, timeout=0.01)
        q.put(big, PATIENCE)
        assert q.get(0).sum() == 3 * MB


def test_a_sender_that_dies_while_the_queue_is_full_leaves_nothing() -> None:
    with SimpleQueue(capacity=32) as q:
        code = """
print("ready", flush=True)
turn = 0
while True:
    q.put((turn, b"x" * 30_000))
    turn += 1
"""
        with child(code, q) as dead:
            assert dead.line() == "ready"
            until(lambda: blocks(q) > 32, "the queue is full and a message waits")
            dead.kill()
        found = []
        while not q.empty():
            found.append(q.get())
        assert [each[0] for each in found] == list(range(len(found)))
        del found
        assert q._ends is not None
        q._ends.arena.reclaim(dead.process.pid)
        assert blocks(q) == 0


def test_a_message_that_got_lost_does_not_take_memory_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import numpy as np

    monkeypatch.setattr("pparallel.runtime.queues.orphans.AGE", 0.3)
    with SimpleQueue(memory=4 * MB) as q:
        q.put("small")
        q.put(b"x" * 500)
        q.put([np.ones(30_000, np.uint8), np.ones(MB, np.uint8), b"y" * 500])
        code = """
q._ends.parcels.pack([bytearray(2 << 20), b"x" * 1000])
os.kill(os.getpid(), 9)
"""
        with child(code, q) as dead:  # between packing and putting
            assert dead.wait() == -signal.SIGKILL
        q.put(np.ones(2 * MB, np.uint8), PATIENCE)
        assert q.get() == "small"
        assert q.get() == b"x" * 500
        assert [len(each) for each in q.get()] == [30_000, MB, 500]
        assert len(q.get()) == 2 * MB
        assert blocks(q) == 0
