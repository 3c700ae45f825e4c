"""``Queue`` and ``SimpleQueue`` of ``compat.torch_multiprocessing``.

Source: CPython, Lib/test/_test_multiprocessing.py, ``_TestQueue`` and ``_TestSimpleQueue``.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import compat_spawn_programs as programs
import pytest

import pparallel.compat.torch_multiprocessing as mp
from pparallel.errors import SerializationError
from pparallel.testing.patience import PATIENCE

MANY = 10_000  #: more than find room in the kernel


@pytest.fixture(params=[0, 3])
def q(request: pytest.FixtureRequest) -> Iterator[mp.Queue]:
    made = mp.Queue(request.param)
    yield made
    made.close()
    made.join_thread()


def started(fn: Any, *args: object, nprocs: int = 1) -> Any:
    return mp.start_processes(fn, args, nprocs, join=False, start_method="forkserver")


def test_what_is_put_is_got_in_order(q: mp.Queue) -> None:
    for each in (1, "two", [3]):
        q.put(each)
    assert not q.empty()
    assert q.qsize() == 3
    assert [q.get(), q.get(True), q.get_nowait()] == [1, "two", [3]]
    assert q.empty()
    assert q.qsize() == 0


def test_a_get_that_does_not_wait_for_long(q: mp.Queue) -> None:
    for call in (q.get_nowait, lambda: q.get(False), lambda: q.get(True, 0.01)):
        with pytest.raises(queue.Empty):
            call()


def test_a_put_that_finds_no_room() -> None:
    q = mp.Queue(2)
    for each in range(2):
        assert not q.full()
        q.put(each)
    assert q.full()
    for call in (q.put_nowait, lambda x: q.put(x, False), lambda x: q.put(x, True, 0.01)):
        with pytest.raises(queue.Full):
            call(7)
    waiting = threading.Thread(target=q.put, args=(2,))
    waiting.start()
    assert q.get() == 0
    waiting.join(PATIENCE)
    assert q.full()
    assert [q.get(), q.get()] == [1, 2]
    q.close()


def test_no_more_than_may_ever_wait() -> None:
    q, most = mp.Queue(4), 0
    putting = started(programs.put_many, q, 100, nprocs=2)
    found = []
    for _ in range(200):
        most = max(most, q.qsize())
        found.append(q.get(timeout=PATIENCE))
    assert most <= 4
    for index in range(2):
        assert [each for rank, each in found if rank == index] == list(range(100))
    assert putting.join(PATIENCE)
    q.close()


def test_an_unbounded_queue_never_has_anybody_wait() -> None:
    q = mp.Queue()
    message = [0]
    for each in range(MANY):
        message[0] = each  # what was put before stays as it was
        q.put(message)
    assert q.qsize() == MANY
    assert not q.full()
    assert [q.get() for _ in range(MANY)] == [[each] for each in range(MANY)]
    q.close()
    q.join_thread()


def test_what_was_put_before_close_arrives() -> None:
    q, other = mp.Queue(), mp.SimpleQueue()
    other.put(q)
    received = other.get()
    for each in range(MANY):
        q.put(each)
    q.close()
    assert [received.get(timeout=PATIENCE) for _ in range(MANY)] == list(range(MANY))
    q.join_thread()
    received.close()
    other.close()


def test_a_process_ends_once_all_that_it_put_is_delivered() -> None:
    q = mp.Queue()
    putting = started(programs.put_many, q, MANY)
    assert [q.get(timeout=PATIENCE) for _ in range(MANY)] == [(0, each) for each in range(MANY)]
    assert putting.join(PATIENCE)
    q.close()


_LEAVES = """
import pparallel.compat.torch_multiprocessing as mp
q = mp.Queue()
q.cancel_join_thread()
for each in range({many}):
    q.put(each)
"""


def test_a_process_need_not_wait_for_what_it_has_put() -> None:
    subprocess.run([sys.executable, "-c", _LEAVES.format(many=MANY)], check=True, timeout=60)


def test_a_closed_queue_takes_and_gives_nothing(q: mp.Queue) -> None:
    with pytest.raises(ValueError, match="close"):
        q.join_thread()
    q.close()
    for call in (q.get, q.empty, q.qsize, lambda: q.put(1), lambda: mp.SimpleQueue().put(q)):
        with pytest.raises((ValueError, SerializationError), match="closed"):
            call()
    q.close()


def test_what_cannot_be_pickled_is_an_error_where_it_is_put(q: mp.Queue) -> None:
    """cpython 103061, 79492: it was printed by a thread, and who wanted it waited for ever."""
    with pytest.raises(SerializationError, match="lock"):
        q.put(threading.Lock())
    q.put("next")
    assert q.get(timeout=PATIENCE) == "next"


@pytest.mark.parametrize("q", [3], indirect=True)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_it_goes_to_processes_and_tasks(q: mp.Queue) -> None:
    import multiprocessing

    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(  # type: ignore[attr-defined]
            target=programs.put, args=(1, q, method)
        )
        process.start()
        assert q.get(timeout=PATIENCE) == (1, method)
        process.join(PATIENCE)
        process.close()
    with mp.Pool(1, programs.keep, (q,)) as pool:
        pool.apply(programs.put, (2, q, "task"))
        assert q.get(timeout=PATIENCE) == (2, "task")
    q.put(q)
    same = q.get(timeout=PATIENCE)
    same.put("through itself")
    assert q.get(timeout=PATIENCE) == "through itself"
    same.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_does_not_put_what_its_parent_has_put() -> None:
    q, answers = mp.Queue(), mp.SimpleQueue()
    for each in range(MANY):
        q.put(each)
    mp.start_processes(programs.put, (answers, "there"), start_method="fork")
    assert answers.get(PATIENCE) == (0, "there")
    assert [q.get(timeout=PATIENCE) for _ in range(MANY)] == list(range(MANY))
    with pytest.raises(queue.Empty):
        q.get(timeout=0.01)
    q.close()
    answers.close()


@pytest.mark.parametrize("bound", [0, 5])
def test_nobody_waits_for_a_process_that_was_killed(bound: int) -> None:
    """The original's locks stay taken: whoever needs one next waits for ever (bpo-20527)."""
    q, taken = mp.Queue(bound), mp.SimpleQueue()
    getting = started(programs.get_for_ever, q, taken)
    putting = started(programs.put_many, q, 1 << 30)
    for _ in range(20):
        taken.get(PATIENCE)
    for context in (getting, putting):
        os.kill(context.pids()[0], signal.SIGKILL)
        with pytest.raises(mp.ProcessExitedException):
            context.join()
    with pytest.raises(queue.Empty):
        deque(iter(q.get_nowait, None), maxlen=0)
    q.put("mine")
    assert q.get(timeout=PATIENCE) == "mine"
    for each in (q, taken):
        each.close()


def test_a_simple_queue() -> None:
    q = mp.SimpleQueue()
    assert q.empty()
    q.put(1)
    q.put("two")
    assert not q.empty()
    assert [q.get(), q.get()] == [1, "two"]
    putting = started(programs.put_many, q, 20, nprocs=2)
    found: list[Any] = [q.get() for _ in range(40)]
    assert sorted(found) == [(index, each) for index in range(2) for each in range(20)]
    assert putting.join(PATIENCE)
    q.close()
    with pytest.raises(ValueError, match="closed"):
        q.put(1)
