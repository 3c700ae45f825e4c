"""Queues between threads and processes, some of which are killed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import pytest
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError, SerializationError, TaskTimeoutError
from pparallel.patterns.queues import SimpleP2PQueue, SimpleQueue
from pparallel.runtime import stopping
from pparallel.runtime.queues.ends import Ends
from pparallel.testing.patience import PATIENCE, until
from pparallel_process import ProcessPoolConfig
from pparallel_serializers import (
    DillSerializerConfig,
    PickleSerializerConfig,
    SafeSerializerConfig,
)
from pparallel_serializers.dill import DillSerializer

KB, MB = 1 << 10, 1 << 20

CHILD = "import os, pickle, sys; queues = pickle.load(sys.stdin.buffer); q = queues[0]\n"


@pytest.fixture
def q() -> Iterator[SimpleQueue]:
    with SimpleQueue(memory=256 * MB) as made:
        yield made


class Child:
    """A process that runs lines of Python with the queues, the first of which is ``q``."""

    def __init__(self, code: str, *queues: SimpleQueue) -> None:
        command = [sys.executable, "-c", CHILD + code]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=False
        )
        self.input: IO[bytes] = self.process.stdin  # type: ignore[assignment]
        self.output: IO[bytes] = self.process.stdout  # type: ignore[assignment]
        pickle.dump(queues, self.input)
        self.input.flush()

    def line(self) -> str:
        return self.output.readline().decode().strip()

    def wait(self) -> int:
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.input.close()
        self.output.close()


@contextmanager
def child(code: str, *queues: SimpleQueue) -> Iterator[Child]:
    made = Child(code, *queues)
    try:
        yield made
    finally:
        made.kill()


@contextmanager
def running(*calls: Callable[[], object]) -> Iterator[None]:
    threads = [threading.Thread(target=each) for each in calls]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        for each in threads:
            each.join(PATIENCE)
        assert not any(each.is_alive() for each in threads)


def blocks(q: SimpleQueue) -> int:
    assert q._ends is not None
    return q._ends.arena.usage().blocks


# -- one process ----------------------------------------------------------------------------------

THINGS: list[Any] = [
    None,
    (1, "two", 3.0),
    b"x" * 100,
    b"x" * 126,
    b"x" * 127,
    b"x" * 5000,
    b"x" * 40_000,
    b"x" * MB,
    list(range(100_000)),
    {"nested": [b"y" * 20_000, "z" * 99_999]},
]


def test_what_is_put_comes_out_in_order(q: SimpleQueue) -> None:
    assert q.empty()
    for thing in THINGS:
        q.put(thing)
    assert not q.empty()
    for thing in THINGS:
        assert q.get() == thing
    assert q.empty()
    assert blocks(q) == 0


def test_the_quick_forms_are_the_same(q: SimpleQueue) -> None:
    q.quick_put("a")
    q.put("b")
    assert q.get() == "a"
    assert q.quick_get() == "b"
    with pytest.raises(TaskTimeoutError):
        q.quick_get(timeout=0)


def test_tensors_arrive_as_the_receivers_own(q: SimpleQueue) -> None:
    import torch

    source = torch.arange(300_000.0)
    q.put({"t": source, "small": torch.ones(3)})
    source.zero_()
    found = q.get()
    assert torch.equal(found["t"], torch.arange(300_000.0))
    found["t"] += 1
    found["small"] += 1
    part = found["t"][5:]
    assert blocks(q) == 1
    del found
    assert part[0] == 6
    del part
    assert blocks(q) == 0


def test_copies_do_not_hold_the_queues_memory() -> None:
    import torch

    with SimpleQueue(copy_tensor=True, memory=4 * MB) as q:
        kept = []
        for turn in range(10):
            q.put(torch.full((300_000,), float(turn)))
            kept.append(q.get())
        assert [float(each[0]) for each in kept] == list(range(10))
        assert blocks(q) == 0


def test_functions_and_local_classes_travel(q: SimpleQueue) -> None:
    offset = 5
    q.put(lambda x: x + offset)
    assert q.get()(1) == 6


@pytest.mark.parametrize(
    "serializer",
    [PickleSerializerConfig(), {"backend": "safe"}, pparallel.build(SafeSerializerConfig())],
)
def test_another_serializer(serializer: Any) -> None:
    with SimpleQueue(serializer=serializer) as q:
        q.put([1, b"x" * 100_000])
        assert q.get() == [1, b"x" * 100_000]
        with pytest.raises(SerializationError):
            q.put(lambda: None)
        assert q.empty()
        other = pickle.loads(pickle.dumps(q))
        q.put("again")
        assert other.get() == "again"
        with pytest.raises(SerializationError):
            other.put(lambda: None)
        other.close()


def test_a_serializer_that_shares_is_sent_as_one() -> None:
    import torch

    shares = DillSerializer(DillSerializerConfig()).sharing("cpu")
    with SimpleQueue(serializer=shares) as q:
        other = pickle.loads(pickle.dumps(q))
        tensor = torch.zeros(1000)
        other.put(tensor)
        q.get()[3] = 7
        assert tensor[3] == 7
        other.close()


def test_what_cannot_be_rebuilt_is_lost_and_the_next_comes(q: SimpleQueue) -> None:
    q.put(Unlucky())
    q.put("next")
    with pytest.raises(SerializationError, match="no luck"):
        q.get()
    assert q.get() == "next"


class Unlucky:
    @override
    def __reduce__(self) -> Any:
        return fail, ()


def fail() -> None:
    raise ValueError("no luck")


@pytest.mark.parametrize("timeout", [0, 0.05, -1])
def test_get_gives_up_in_time(q: SimpleQueue, timeout: float) -> None:
    for kind in (TimeoutError, multiprocessing.TimeoutError):
        with pytest.raises(kind, match="getting an object from the queue was not done within"):
            q.get(timeout)


def test_get_waits_for_what_comes_later(q: SimpleQueue) -> None:
    found: list[object] = []
    with running(lambda: found.append(q.get(PATIENCE)), lambda: found.append(q.get())):
        q.put("a")
        q.put("b")
    assert sorted(map(str, found)) == ["a", "b"]


def test_a_full_queue_takes_nothing_until_there_is_room() -> None:
    with SimpleQueue(capacity=32, memory=16 * MB) as q:
        count = 0
        with pytest.raises(TaskTimeoutError, match="putting an object into the queue"):  # noqa: PT012
            while True:
                q.put((count, b"x" * 50_000), timeout=0.01)
                count += 1
        assert count >= 32
        assert blocks(q) == count
        with pytest.raises(TaskTimeoutError):
            q.put("small", timeout=0)
        with running(lambda: q.put("late", PATIENCE), lambda: q.put("late")):
            found = [q.get(PATIENCE) for _ in range(count + 2)]
        assert [each[0] for each in found[:count]] == list(range(count))
        assert found[count:] == ["late", "late"]
        del found
        assert blocks(q) == 0


def test_put_waits_for_memory_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with SimpleQueue(memory=2 * MB) as q:
        q.put(b"a" * 900_000, PATIENCE)
        q.put(b"b" * 400_000, PATIENCE)
        with pytest.raises(TaskTimeoutError):
            q.put(b"c" * 900_000, timeout=0.05)
        assert blocks(q) == 2
        with running(lambda: q.put(b"c" * 900_000, PATIENCE)):
            until(lambda: len(caplog.records) == 2, "put waits")
            assert q.get() == b"a" * 900_000
            assert q.get() == b"b" * 400_000
            assert q.get(PATIENCE) == b"c" * 900_000
    assert len(caplog.records) == 2
    assert "put waits until receivers let go" in caplog.text


def test_what_can_never_fit_is_refused() -> None:
    with SimpleQueue(memory=2 * MB) as q:
        with pytest.raises(OSError, match=r"no room for 52428.. bytes: its budget is 2097152"):
            q.put(b"x" * (5 * MB))
        q.put("small")
        assert q.get() == "small"
        assert blocks(q) == 0


def test_capacity_is_refused_where_it_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="capacity must be 1 or more, not 0"):
        SimpleQueue(capacity=0)


def test_a_capacity_that_this_user_may_not_have_is_what_he_may() -> None:
    with SimpleP2PQueue(capacity=1 << 24) as q:
        for turn in range(4096):
            q.put(turn, timeout=0)
        assert q.get() == 0


# -- closing --------------------------------------------------------------------------------------


def test_a_closed_queue_refuses_everything(q: SimpleQueue) -> None:
    q.put(1)
    q.close()
    q.close()
    for call in (q.get, q.empty, q.shutdown, lambda: q.put(1), lambda: pickle.dumps(q)):
        with pytest.raises(ClosedError, match="the queue is closed"):
            call()


def test_close_wakes_this_processs_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[Ends] = []
    wait = Ends.wait

    def noted(ends: Ends, *args: Any) -> None:
        waiting.append(ends)
        wait(ends, *args)

    q = SimpleQueue(capacity=32)
    full = SimpleQueue(capacity=32)
    with pytest.raises(TaskTimeoutError):  # noqa: PT012
        while True:
            full.put(1, timeout=0)
    failures: list[BaseException] = []

    def call(operation: Callable[[], object]) -> None:
        try:
            operation()
        except ClosedError as error:
            failures.append(error)

    calls: list[Callable[[], object]] = [q.get, lambda: q.get(PATIENCE), lambda: full.put(1)]
    monkeypatch.setattr(Ends, "wait", noted)
    with running(*[lambda each=each: call(each) for each in calls]):
        until(lambda: len(waiting) == len(calls), "not all wait")
        q.close()
        full.close()
    assert len(failures) == 3


def test_closing_here_leaves_others_their_queue(q: SimpleQueue) -> None:
    other = pickle.loads(pickle.dumps(q))
    q.put("left")
    q.close()
    assert other.get(0) == "left"
    other.put("more")
    assert other.get(0) == "more"
    other.close()


def test_shutdown_is_for_all_and_what_was_put_still_arrives(q: SimpleQueue) -> None:
    other = pickle.loads(pickle.dumps(q))
    q.put("first")
    q.put(b"x" * 50_000)
    other.shutdown()
    other.shutdown()
    with pytest.raises(ClosedError, match="the queue was shut down"):
        q.put("late")
    with pytest.raises(ClosedError, match="the queue was shut down"):
        other.put(b"x" * 50_000)
    assert other.get() == "first"
    assert q.get() == b"x" * 50_000
    for each in (q, other):
        with pytest.raises(ClosedError, match="the queue was shut down"):
            each.get()
    assert blocks(q) == 0
    other.close()


def test_shutdown_wakes_the_waiters_of_all_processes(q: SimpleQueue) -> None:
    code = """
print("ready", flush=True)
try:
    q.get()
except ValueError as error:
    print(error, flush=True)
"""
    with child(code, q) as one, child(code, q) as two:
        assert [one.line(), two.line()] == ["ready"] * 2
        q.shutdown()
        assert [one.line(), two.line()] == ["the queue was shut down"] * 2


def test_a_rank_that_is_told_to_stop_wakes(q: SimpleQueue) -> None:
    signal_to_stop = stopping.StopSignal()
    failures: list[ClosedError] = []

    def wait() -> None:
        with stopping.running_under(signal_to_stop):
            try:
                q.get()
            except ClosedError as error:
                failures.append(error)

    with running(wait):
        signal_to_stop.set()
    assert [each.consequence for each in failures] == [True]
    q.put("usable")
    assert q.get() == "usable"


def test_a_rank_that_is_told_to_stop_when_it_waits_no_longer(q: SimpleQueue) -> None:
    """The signal's thread may be late, and what it would write to be somebody else's by then."""
    late: list[stopping.Callback] = []

    class Late(stopping.StopSignal):
        @override
        def subscribe(self, callback: stopping.Callback) -> Callable[[], None]:
            late.append(callback)
            return lambda: None

    signal_to_stop = Late()
    with stopping.running_under(signal_to_stop), pytest.raises(TaskTimeoutError):
        q.get(timeout=0.01)
    others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3)]
    try:
        late[0](signal_to_stop)
        for each in others:
            with pytest.raises(BlockingIOError):
                os.eventfd_read(each)
    finally:
        for each in others:
            os.close(each)


def test_ctrl_c_wakes(q: SimpleQueue) -> None:
    code = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print("ready", flush=True)
    q.get()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    with child(code, q) as waiting:
        assert waiting.line() == "ready"
        waiting.process.send_signal(signal.SIGINT)
        assert waiting.line() == "interrupted"


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


def test_many_senders_and_many_receivers(scale: Callable[[int], int]) -> None:
    count = scale(5000)
    with SimpleQueue() as q, SimpleQueue() as results:
        senders = [Child(SENDER, q) for _ in range(3)]
        receivers = [Child(RECEIVER, q, results) for _ in range(3)]
        try:
            for index, each in enumerate(senders):
                each.input.write(f"{index}\n{count}\n".encode())
                each.input.flush()
            found = [results.get(PATIENCE) for _ in range(3 * count)]
            assert Counter((start, turn) for _, start, turn, _ in found) == Counter(
                (start, turn) for start in range(3) for turn in range(count)
            )
            order: dict[tuple[int, int], list[int]] = defaultdict(list)
            for pid, start, turn, length in found:
                order[pid, start].append(turn)
                assert length == (turn % 7 * 5000 if turn % 50 == 0 else turn % 200)
            assert all(turns == sorted(turns) for turns in order.values())
            for _ in receivers:
                q.put(None)
            assert [each.wait() for each in senders + receivers] == [0] * 6
        finally:
            for each in senders + receivers:
                each.kill()
        assert blocks(q) == 0


def test_many_threads(q: SimpleQueue, scale: Callable[[int], int]) -> None:
    count = scale(3000)
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


def test_senders_and_receivers_are_killed_at_any_instant(scale: Callable[[int], int]) -> None:
    dice = random.Random(4)
    with SimpleQueue(memory=64 * MB) as q:
        codes = [CHURN_SEND, CHURN_SEND, CHURN_RECEIVE, CHURN_RECEIVE]
        children = [Child(code, q) for code in codes]
        try:
            for _ in range(scale(50) + 5):
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
