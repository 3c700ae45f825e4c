"""Where the time of a pool's workers goes, counted and shown."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pparallel
from pparallel.errors import WorkerLostError
from pparallel_process import P2PPoolConfig, ProcessPoolConfig
from pparallel_process.pool import ProcessPool
from pparallel_process.telling.insights import Insights, Ledger, WorkerInsights


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def ledger() -> tuple[Ledger, Clock]:
    clock = Clock()
    return Ledger(clock), clock


def test_a_worker_starts_waits_and_works() -> None:
    book, clock = ledger()
    book.started(0, 11)
    clock.now += 2
    book.ready(0)
    clock.now += 8
    book.worked(0, 3.0, 4)
    report = book.report()
    (worker,) = report.workers
    assert worker == WorkerInsights("worker-0", 11, 1, 0, 4, startup=2.0, waiting=5.0, working=3.0)
    assert worker.life == 10.0
    assert worker.shares == {"startup": 0.2, "waiting": 0.5, "working": 0.3}


def test_the_time_without_a_process_counts_for_nothing() -> None:
    book, clock = ledger()
    book.started(0, 11)
    book.ready(0)
    clock.now += 1
    book.lost(0)
    clock.now += 50
    book.started(0, 12)
    clock.now += 2
    book.ready(0)
    clock.now += 3
    book.ended(0)
    clock.now += 50
    (worker,) = book.report().workers
    assert (worker.starts, worker.losses) == (2, 1)
    assert (worker.startup, worker.waiting, worker.working) == (2.0, 4.0, 0.0)


def test_a_worker_that_never_was_ready_only_started() -> None:
    book, clock = ledger()
    book.started(1, 11)
    clock.now += 4
    assert book.report().workers[0].startup == 4.0
    book.lost(1)
    clock.now += 4
    (worker,) = book.report().workers
    assert (worker.name, worker.startup, worker.life) == ("worker-1", 4.0, 4.0)


def test_a_replacement_ends_what_was_there_before() -> None:
    book, clock = ledger()
    for pid in (11, 12):
        book.started(0, pid)
        book.ready(0)
        clock.now += 5
    assert book.report().workers[0].waiting == 10.0


def test_the_slowest_tasks_are_named() -> None:
    book, _ = ledger()
    for worker in (0, 1):
        book.started(worker, 11)
    asked: list[int] = []

    def task(number: int) -> Callable[[], str]:
        def function() -> str:
            asked.append(number)
            return f"f{number}"

        return function

    for number, seconds in enumerate([5, 1, 4, 2, 3, 0.5, 6, 5]):
        book.slow(number % 2, seconds, task(number))
    slowest = [(each.seconds, each.function, each.worker) for each in book.report().slowest]
    assert slowest == [
        (6, "f6", "worker-0"),
        (5, "f0", "worker-0"),
        (5, "f7", "worker-1"),
        (4, "f2", "worker-0"),
        (3, "f4", "worker-0"),
    ]
    assert asked == [0, 1, 2, 3, 4, 6, 7]


STEPS = st.tuples(
    st.sampled_from(["started", "ready", "worked", "ended", "lost"]),
    st.integers(0, 2),
    st.floats(0, 10),
)


@given(st.lists(STEPS, max_size=40))
def test_the_numbers_add_up(steps: list[tuple[str, int, float]]) -> None:
    book, clock = ledger()
    lives: dict[int, list[float]] = {}
    alive: dict[int, bool] = {}
    tasks = 0
    for step, worker, seconds in steps:
        clock.now += seconds
        for each in lives:
            lives[each][0] += seconds if alive[each] else 0
        if step == "started":
            book.started(worker, 11)
            lives.setdefault(worker, [0.0])
            alive[worker] = True
        elif worker not in lives:
            continue
        elif step == "worked":
            book.worked(worker, 0.0, 3)
            tasks += 3
        else:
            getattr(book, step)(worker)
            alive[worker] = alive[worker] and step == "ready"
    report = book.report()
    assert [each.life for each in report.workers] == pytest.approx(
        [lives[each][0] for each in sorted(lives)]
    )
    assert report.total.tasks == tasks
    assert report.total.life == pytest.approx(sum(each.life for each in report.workers))
    for entry in (*report.workers, report.total):
        assert sum(entry.shares.values()) == pytest.approx(1 if entry.life else 0)
        assert min(entry.startup, entry.waiting, entry.working) >= 0


def test_clocks_that_differ_make_no_negative_time() -> None:
    book, clock = ledger()
    book.started(0, 11)
    book.ready(0)
    clock.now += 1
    book.worked(0, 1.1, 1)
    (worker,) = book.report().workers
    assert (worker.waiting, worker.working) == (0.0, 1.1)
    assert sum(worker.shares.values()) == 1


def test_a_worker_is_called_what_the_pool_calls_it() -> None:
    book, _ = ledger()
    book.started(0, 11, "critic-worker-0")
    book.slow(0, 1.0, lambda: "f")
    report = book.report()
    assert (report.workers[0].name, report.slowest[0].worker) == ("critic-worker-0",) * 2


def example() -> Insights:
    book, clock = ledger()
    for worker in (0, 1):
        book.started(worker, 11)
        clock.now += 0.25
        book.ready(worker)
    clock.now += 1.25
    book.worked(0, 1.0, 1234)
    book.worked(1, 0.125, 7)
    book.lost(1)
    book.slow(0, 0.5, lambda: "jobs.resize")
    book.slow(1, 12.0, lambda: "<lambda>")
    book.slow(0, 7e-6, lambda: "abs")
    return book.report()


def test_the_text_is_a_table() -> None:
    assert str(example()).splitlines() == [
        "              starts  tasks      start-up       waiting       working",
        "worker-0           1   1234  0.250 s  14%  0.500 s  29%  1.000 s  57%",
        "worker-1  1 (1 lost)      7  0.250 s  17%  1.125 s  75%  0.125 s   8%",
        "all       2 (1 lost)   1241  0.500 s  15%  1.625 s  50%  1.125 s  35%",
        "",
        "slowest tasks",
        " 12.00 s  <lambda>     worker-1",
        "500.0 ms  jobs.resize  worker-0",
        "    7 us  abs          worker-0",
    ]


def test_of_nothing_there_is_a_report_too() -> None:
    report = Ledger().report()
    assert (report.workers, report.slowest) == ((), ())
    assert report.total.life == 0
    assert str(report).splitlines()[1].startswith("all")


def test_it_is_plain_data() -> None:
    data = example().to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["total"]["tasks"] == 1241
    assert data["workers"][0]["shares"]["working"] == pytest.approx(4 / 7)
    assert data["slowest"][0] == {"function": "<lambda>", "seconds": 12.0, "worker": "worker-1"}


def test_any_thread_may_ask() -> None:
    book, _ = ledger()
    book.started(0, 11)

    def work() -> None:
        for _ in range(500):
            book.worked(0, 0.5, 1)
            book.report()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (book.report().total.tasks, book.report().total.working) == (1500, 750.0)


# -- of a pool ------------------------------------------------------------------------------------


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def report_of(pool: object) -> Insights:
    assert isinstance(pool, ProcessPool)
    return pool.insights()


@pytest.mark.parametrize("config", [ProcessPoolConfig(size=2), P2PPoolConfig(size=2)])
def test_the_insights_of_a_pool(config: ProcessPoolConfig) -> None:
    began = monotonic()
    with pparallel.build(config) as pool:
        pool.map(pause, [0.2, 0.001, 0.001, 0.001])
        pool.map(abs, range(1000))
    report, took = report_of(pool), monotonic() - began
    assert [each.name for each in report.workers] == ["pool-worker-0", "pool-worker-1"]
    assert report.total.tasks == 1004
    assert report.total.starts == 2
    assert 0.2 <= report.total.working <= report.total.life <= 2 * took
    assert report.slowest[0].seconds >= 0.2
    assert "pause" in report.slowest[0].function
    assert report_of(pool) == report  # after its end no time passes for it


def pause_on(slow: int, number: int) -> int:
    if number == slow:
        pause(0.5)
    return number


def test_a_slow_task_among_quick_ones_is_named() -> None:
    """Quick tasks run together, and only the one that takes long is looked at."""
    with pparallel.build(ProcessPoolConfig(size=1)) as pool:
        pool.map(partial(pause_on, -1), range(20_000))
        pool.map(partial(pause_on, 7_000), range(20_000))
        slowest = report_of(pool).slowest
    assert [each.seconds >= 0.5 for each in slowest if "task 7000" in each.function] == [True]


def test_workers_that_die_are_counted() -> None:
    with pparallel.build(ProcessPoolConfig(size=1)) as pool:
        for _ in range(2):
            with pytest.raises(WorkerLostError):
                pool.apply(os._exit, (1,))
        pool.apply(abs, (1,))
    (worker,) = report_of(pool).workers
    assert (worker.starts, worker.losses, worker.tasks) == (3, 2, 1)
