"""Faults of ``torch.multiprocessing`` and ``multiprocessing`` that are gone: each would hang there.

More of them are where they belong: what cannot be pickled in a queue, and processes that are
killed at one, in ``test_compat_torch_multiprocessing_queues.py``; many tensors, and segments that
a tracker unlinks, in ``test_compat_torch_multiprocessing_objects.py``.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import compat_spawn_programs as programs
import pytest

import pparallel.compat.torch_multiprocessing as mp
from pparallel.errors import SerializationError, WorkerLostError
from pparallel.testing.patience import PATIENCE, until, until_gone

LIMIT = 10.0  #: seconds within which an error is there; the issue asks for one


def started(fn: Any, *args: object, nprocs: int = 1, **options: Any) -> Any:
    return mp.start_processes(fn, args, nprocs, False, start_method="forkserver", **options)


@pytest.mark.parametrize(
    ("fail", "options"),
    [
        (programs.fail_beside_the_deaf, {}),
        (programs.fail_beside_those_who_end_for_ever, {"grace_period": 0.05}),
    ],
)
def test_one_rank_asserts_and_the_others_hang(fail: Any, options: dict[str, float]) -> None:
    """xla 7974: the others go on waiting, and zombies stay.

    pytorch 41694: `join` is stuck, since the others do not end when they are told to; by now for
    half a minute.
    """
    there = multiprocessing.get_context("spawn").Semaphore(0)
    context = started(fail, 2, there, nprocs=3)
    began = monotonic()
    with pytest.raises(mp.ProcessRaisedException, match="shapes differ") as caught:
        context.join(PATIENCE, **options)
    assert monotonic() - began < 25, "it waited for those who do not end"
    assert caught.value.error_index == 2
    until_gone(*context.pids())


def test_an_interrupt_of_a_process_is_no_success() -> None:
    """pytorch PR 194439: a child's KeyboardInterrupt was reported as success."""
    context = started(programs.interrupt, 0)
    with pytest.raises(mp.ProcessRaisedException, match="KeyboardInterrupt"):
        context.join(LIMIT)


def interrupt_the_join(ended: threading.Event) -> None:
    main = threading.main_thread().ident or 0

    def joins() -> bool:
        frame = sys._current_frames().get(main)
        return "join" in [each.f_code.co_name for each, _ in traceback.walk_stack(frame)]

    until(joins, "the main thread does not join")
    signal.pthread_kill(main, signal.SIGINT)
    # A signal that comes just before a thread begins to wait is not seen by CPython until the next.
    while not ended.wait(5.0):
        signal.pthread_kill(main, signal.SIGINT)


def test_ctrl_c_at_the_join_ends_all() -> None:
    event = multiprocessing.get_context("spawn").Event()
    context = started(programs.wait_for, event, nprocs=2)
    pids = context.pids()
    ended = threading.Event()
    ringing = threading.Thread(target=interrupt_the_join, args=(ended,))
    ringing.start()
    with pytest.raises(KeyboardInterrupt):
        context.join(PATIENCE, grace_period=0.05)
    ended.set()
    ringing.join()
    until_gone(*pids)


@pytest.mark.parametrize("number", [signal.SIGKILL])
def test_a_killed_worker_does_not_hang_the_pool(number: int) -> None:
    """cpython 96062, bpo-22393: the task of a worker that was killed never ended."""
    with mp.Pool(2) as pool:
        calls: list[Callable[[], object]] = [
            lambda: pool.apply_async(programs.kill_own, (number,)).get(LIMIT),
            lambda: pool.map_async(programs.kill_own, [number]).get(LIMIT),
            lambda: pool.imap(programs.kill_own, [number]).next(LIMIT),
        ]
        for call in calls:
            with pytest.raises(WorkerLostError) as caught:
                call()
            assert caught.value.exitcode == -number
        assert pool.map(abs, range(-4, 0)) == [4, 3, 2, 1]


def test_what_cannot_be_pickled_does_not_hang_the_pool() -> None:
    """cpython 103061, 79492."""
    with mp.Pool(1) as pool:
        calls: list[Callable[[], object]] = [
            lambda: pool.apply_async(programs.unpicklable).get(LIMIT),
            lambda: pool.apply_async(abs, (threading.Lock(),)).get(LIMIT),
            lambda: pool.map_async(abs, [threading.Lock()]).get(LIMIT),
            lambda: pool.imap(abs, iter([threading.Lock()])).next(LIMIT),
        ]
        for call in calls:
            with pytest.raises(SerializationError, match="lock"):
                call()
        assert pool.apply(abs, (-1,)) == 1


@pytest.mark.parametrize("maxtasks", [None, 1])
def test_an_initializer_that_raises_does_not_loop_for_ever(maxtasks: int | None) -> None:
    """bpo-28699 and others: workers were started again and again, and no task ever ended."""
    with mp.Pool(2, programs.refuse_to_start, maxtasksperchild=maxtasks) as pool:
        handle = pool.map_async(abs, range(10))
        with pytest.raises(LookupError, match="no licence"):
            handle.get(LIMIT)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_and_workers_may_have_children() -> None:
    """pytorch 97992: daemonic workers could not run torch.compile, which starts processes."""
    queue = mp.Queue()
    with mp.Pool(1) as pool:
        assert pool.apply_async(programs.start_a_child, (queue,)).get(LIMIT) == 0
    assert queue.get(timeout=PATIENCE) == "from a child"
    assert started(programs.start_a_child_in, queue, daemon=True).join(LIMIT)
    assert queue.get(timeout=PATIENCE) == "from a child"
    queue.close()


def test_a_killed_process_leaves_no_shared_memory() -> None:
    """vllm 51579: shared memory stayed after SIGKILL until the machine was started anew."""
    before = set(Path("/dev/shm").iterdir())
    queue = mp.Queue()
    context = started(programs.fill_and_die, queue, 5, 1 << 20)
    with pytest.raises(mp.ProcessExitedException):
        context.join(LIMIT)
    ours = tuple(map(str, (os.getpid(), *context.pids())))  # other programs have theirs there
    new = [each.name for each in set(Path("/dev/shm").iterdir()) - before]
    assert [name for name in new if any(pid in name for pid in ours)] == []
    assert [number for number, _ in (queue.get(timeout=PATIENCE) for _ in range(5))] == [*range(5)]
    queue.close()


def test_processes_end_with_a_parent_that_is_killed() -> None:
    """ "If the main process exits abruptly", the documentation of torch warns, children stay."""
    pids = mp.SimpleQueue()
    context = started(programs.be_a_parent, pids)
    child = pids.get(PATIENCE)
    os.kill(context.pids()[0], signal.SIGKILL)
    with pytest.raises(mp.ProcessExitedException):
        context.join(LIMIT)
    until_gone(child)
    until(pids.empty, "there was more than one")
    pids.close()
