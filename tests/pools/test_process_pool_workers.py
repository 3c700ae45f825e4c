"""Workers: time-outs that end them, recycling, initializers that fail, and who they are."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from process_backends import BACKENDS, gate_in, pool_of

import pparallel
from pparallel.errors import (
    ClosedError,
    ConfigError,
    PparallelError,
    SerializationError,
    TaskTimeoutError,
    WorkerLostError,
)
from pparallel.testing.gate import Gate
from pparallel.testing.patience import PATIENCE, until_gone
from pparallel.testing.pool.isolation import ends_of
from pparallel.testing.pool.tasks import (
    Refused,
    double,
    note,
    noted,
    own_pid,
    own_pid_of,
    pause,
    refuse,
)

Make = Callable[..., Any]


@pytest.fixture
def make() -> Make:
    return partial(pool_of, "process")


@pytest.fixture(params=BACKENDS)
def make_both(request: pytest.FixtureRequest) -> Make:
    """Make a pool of each backend: how tasks are dealt to workers is what differs."""
    return partial(pool_of, request.param)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with gate_in(tmp_path / "gate") as gate:
        yield gate


def hold_the_gil(_: object = None) -> None:
    ctypes.PyDLL(None).sleep(1000)


def compute(_: object = None) -> None:
    while True:
        pass


def refuse_to_be_interrupted(_: object = None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGALRM})
    while True:
        try:
            compute()
        except BaseException:  # noqa: BLE001 - the point
            continue


STUBBORN = [hold_the_gil, compute, refuse_to_be_interrupted]


# -- time-outs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "task"),
    [
        ("process", hold_the_gil),
        ("process", compute),
        ("process", refuse_to_be_interrupted),
        ("p2p", hold_the_gil),
    ],
)
def test_a_time_out_ends_any_task(
    backend: str, task: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error shows where the task was."""
    monkeypatch.setattr("pparallel_process.engine.oversight._DUMP", PATIENCE)
    with pool_of(backend, 1, task_timeout=0.3) as pool:
        (pid,) = pool.pids()
        stuck, after = pool.submit(task), pool.submit(double, 2)
        with pytest.raises(TaskTimeoutError, match=r"0\.3 s") as caught:
            stuck.result(PATIENCE)
        assert f"in {task.__name__}" in "\n".join(caught.value.__notes__)
        assert after.result(PATIENCE) == 4
        until_gone(pid)
        assert pool.pids() != [pid]


def test_a_time_out_of_a_map_fails_it(make: Make) -> None:
    with make(task_timeout=1.0) as pool:
        began = time.monotonic()
        with pytest.raises(TaskTimeoutError):
            pool.map(wait_on_seven, range(20))
        assert time.monotonic() - began <= 5.0  # five times the bound
        assert pool.map(double, range(20)) == list(range(0, 40, 2))


def wait_on_seven(number: int) -> int:
    if number == 7:
        pause(1000.0)  # without the GIL: what ended before is reported
    return number


def test_time_outs_of_several_workers(make: Make) -> None:
    with make(size=3, task_timeout=0.3) as pool:
        handles = [pool.submit(hold_the_gil if each % 2 else double, each) for each in range(8)]
        for at, each in enumerate(handles):
            if at % 2:
                assert isinstance(each.exception(PATIENCE), TaskTimeoutError)
            else:
                assert each.result(PATIENCE) == 2 * at


def test_quick_tasks_never_time_out(make: Make) -> None:
    """Though the batch that they come in takes longer than one of them may."""
    with make(size=1, task_timeout=0.6) as pool:
        assert pool.map(pause, [0.0005] * 1300) == [None] * 1300


def test_time_outs_are_not_retried(make: Make, tmp_path: Path) -> None:
    """The time that a task takes is its own doing; what ``retries`` mends is a worker's death."""
    with make(size=1, task_timeout=0.3, retries=2) as pool:
        error = pool.submit(note_and_wait, tmp_path / "notes").exception(PATIENCE)
        assert isinstance(error, TaskTimeoutError)
    assert noted(tmp_path / "notes") == ["started"]


def note_and_wait(path: Path) -> None:
    note(path, "started")
    hold_the_gil()


def test_a_time_out_of_waiting_ends_no_task(make: Make, gate: Gate) -> None:
    with make(size=1) as pool:
        handle = pool.submit(gate.pass_through, 3)
        gate.arrived()
        with pytest.raises(TaskTimeoutError):
            handle.result(0.05)
        with pytest.raises(TaskTimeoutError):
            pool.imap(double, [1]).next(0.05)
        gate.open()
        assert handle.result(PATIENCE) == 3


# -- recycling ---------------------------------------------------------------------------------


def test_recycling_loses_nothing(make_both: Make, tmp_path: Path) -> None:
    run = partial(note, tmp_path / "notes")
    with make_both(max_tasks=3) as pool:
        handles = [pool.submit(run, each) for each in range(50)]
        assert pool.map(run, range(50, 100)) == list(range(50, 100))
        assert list(pool.imap(run, range(100, 150))) == list(range(100, 150))
        assert [each.result(PATIENCE) for each in handles] == list(range(50))
    assert sorted(map(int, noted(tmp_path / "notes"))) == list(range(150))


def test_recycling_after_each_task(make: Make) -> None:
    with make(size=2, max_tasks=1) as pool:
        pids = pool.map(own_pid_of, range(12))
        assert len(set(pids)) == 12


def test_workers_are_recycled_beside_one_that_is_busy(make_both: Make, gate: Gate) -> None:
    with make_both(max_tasks=1) as pool:
        stuck = pool.submit(gate.pass_through, 1)
        gate.arrived()
        assert pool.map(double, range(6)) == [0, 2, 4, 6, 8, 10]
        assert not stuck.done()
        gate.open()
        assert stuck.result(PATIENCE) == 1


# -- initializers ------------------------------------------------------------------------------


def fail_at_first(path: Path, times: int) -> None:
    note(path, "started")
    if len(noted(path)) <= times:
        refuse("to start")


def test_an_initializer_that_fails_once(make: Make, tmp_path: Path) -> None:
    """A worker may be started three times: a network that is away for a moment harms nobody."""
    config = {"initializer": fail_at_first, "initargs": (tmp_path / "notes", 1)}
    with make(size=1, **config) as pool:
        assert pool.map(double, range(5)) == [0, 2, 4, 6, 8]
    assert len(noted(tmp_path / "notes")) == 2


def test_an_initializer_is_run_in_each_new_worker(make: Make, tmp_path: Path) -> None:
    config = {"initializer": note, "initargs": (tmp_path / "notes", "started")}
    with make(size=1, **config) as pool:
        for _ in range(4):
            assert isinstance(pool.submit(os._exit, 1).exception(PATIENCE), WorkerLostError)
        assert pool.apply(double, (1,)) == 2
    assert len(noted(tmp_path / "notes")) == 5


def test_an_initializer_that_fails_later(make: Make, tmp_path: Path) -> None:
    config = {"initializer": fail_after, "initargs": (tmp_path / "notes", 1)}
    with make(size=1, **config) as pool:
        assert pool.apply(double, (1,)) == 2
        assert isinstance(pool.submit(os._exit, 1).exception(PATIENCE), WorkerLostError)
        for _ in range(3):
            with pytest.raises(Refused, match="to start"):
                pool.apply(double, (1,))
    assert len(noted(tmp_path / "notes")) <= 4


def fail_after(path: Path, times: int) -> None:
    note(path, "started")
    if len(noted(path)) > times:
        refuse("to start")


def test_an_initializer_that_hangs(make: Make) -> None:
    with make(initializer=refuse_to_be_interrupted) as pool:
        handle = pool.submit(double, 1)
        assert not handle.wait(0.1)
        pool.terminate()
        with pytest.raises(ClosedError, match="terminated"):
            handle.result(0)
        joined = threading.Thread(target=pool.join, daemon=True)
        joined.start()
        joined.join(PATIENCE)
        assert not joined.is_alive()


def test_an_initializer_that_cannot_be_sent(make: Make) -> None:
    pool = make(initializer=double, initargs=(threading.Lock(),))
    with pytest.raises(SerializationError):
        pool.open()
    pool.terminate()
    pool.join()


def test_a_start_method_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="start_method"):
        pparallel.build({"pool": {"backend": "process", "start_method": "clone"}})


def test_a_preload_that_does_not_exist() -> None:
    pool = pool_of("process", preload=("pparallel_nowhere",))
    with pytest.raises(PparallelError, match="cannot import 'pparallel_nowhere'"):
        pool.open()
    pool.terminate()
    pool.join()


# -- stubborn workers at the end ---------------------------------------------------------------


def test_terminate_ends_any_worker(make: Make) -> None:
    pool = make(size=3)
    pool.open()
    handles = [pool.submit(task) for task in STUBBORN]
    pids = pool.pids()
    pool.terminate()
    pool.join()
    assert all(isinstance(each.exception(0), ClosedError) for each in handles)
    until_gone(*pids)


def test_threads_of_a_task_hold_nobody_up(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pparallel_process.engine.engine._END", 0.2)  # seconds given to workers
    with make() as pool:
        assert pool.map(start_a_thread, range(4)) == [0, 1, 2, 3]
        pids = pool.pids()
    until_gone(*pids)


def start_a_thread(value: int) -> int:
    threading.Thread(target=hold, daemon=False).start()
    return value


def hold() -> None:
    threading.Event().wait(1000)


# -- who runs what -----------------------------------------------------------------------------


def test_pids(make: Make, gate: Gate) -> None:
    with make(size=3) as pool:
        seen = pool.map_async(partial(own_pid, gate), range(3))
        gate.arrived(3)
        gate.open()
        assert sorted(seen.get(PATIENCE)) == sorted(pool.pids())
    assert pool.pids() == []


def test_a_long_task_does_not_hold_up_quick_ones(make_both: Make, gate: Gate) -> None:
    """What waits behind a long task, and what is dealt to its worker, goes to one that is idle."""
    with make_both() as pool:
        long = pool.submit(gate.pass_through)
        gate.arrived()
        assert pool.map_async(abs, range(200)).get(PATIENCE) == list(range(200))
        pairs = [(each,) for each in range(200)]
        assert pool.starmap_async(abs, pairs).get(PATIENCE) == list(range(200))
        assert len(list(pool.imap(abs, range(200)))) == 200
        assert [pool.submit(abs, each).result(PATIENCE) for each in range(50)] == list(range(50))
        assert not long.done()
        gate.open()


def test_one_long_task_among_many_quick_ones(make_both: Make, gate: Gate) -> None:
    with make_both() as pool:
        stream = pool.imap_unordered(partial(pass_on_seventy, gate), range(300))
        assert sorted(stream.next(PATIENCE) for _ in range(299)) == [
            each for each in range(300) if each != 70
        ]
        gate.open()
        assert list(stream) == [70]


def pass_on_seventy(gate: Gate, number: int) -> int:
    if number == 70:
        gate.pass_through()
    return number


def test_a_death_takes_few_quick_tasks_with_it(make: Make) -> None:
    """Tasks of microseconds run as one group, in which nobody can tell which was the last."""
    deadly, most = 20_011, 256
    task = partial(exit_on, deadly)
    with make(size=1) as pool:
        assert pool.map(task, range(20_000)) == list(range(20_000))  # how quick it is, is known
        ends = ends_of(pool.imap(task, range(40_000)), 40_000)
    lost = [at for at, end in enumerate(ends) if isinstance(end, WorkerLostError)]
    assert deadly in lost
    assert max(lost) < deadly + most
    assert [end for end in ends if not isinstance(end, WorkerLostError)] == [
        at for at in range(40_000) if at not in lost
    ]


def exit_on(deadly: int, number: int) -> int:
    if number == deadly:
        os._exit(3)
    return number
