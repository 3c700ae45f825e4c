"""Our thread pool beside those of the standard library."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import ThreadPool
from typing import NamedTuple

from benchmarks.harness import Aim, Contest, Making, Setting, timed
from benchmarks.ours import WORKERS, our_pool
from benchmarks.process_pool import collected, many, submitted, threads
from benchmarks.tasks import no_op
from pparallel.interfaces.pool import Pool


class Opened(NamedTuple):
    """All that are compared."""

    ours: Pool
    pool: ThreadPool
    executor: ThreadPoolExecutor


@contextmanager
def opened() -> Iterator[Opened]:
    """Open all."""
    with (
        our_pool("thread") as ours,
        ThreadPool(WORKERS) as pool,
        ThreadPoolExecutor(WORKERS) as executor,
    ):
        yield Opened(ours, pool, executor)


@contextmanager
def mapped(setting: Setting) -> Iterator[Contest]:
    """``map`` with the default chunks."""
    turn = many(setting.count(100_000, 20))
    with opened() as all_:
        yield Contest(
            contenders={
                "ours": turn(lambda items: all_.ours.map(no_op, items)),
                "ThreadPool": turn(lambda items: all_.pool.map(no_op, items)),
            },
            rounds=11,
        )


@contextmanager
def ordered(setting: Setting) -> Iterator[Contest]:
    """``imap`` with its default arguments."""
    turn = many(setting.count(10_000, 20))
    with opened() as all_:
        yield Contest(
            contenders={
                "ours": turn(lambda items: all_.ours.imap(no_op, items)),
                "ThreadPool": turn(lambda items: all_.pool.imap(no_op, items)),
            },
            aims=[Aim("ThreadPool", 1)],
            rounds=11,
        )


@contextmanager
def futures(setting: Setting) -> Iterator[Contest]:
    """A future for each task."""
    turn = many(setting.count(10_000, 20))
    with opened() as all_:
        yield Contest(
            contenders={
                "ours": turn(lambda xs: collected(all_.ours.submit(no_op, each) for each in xs)),
                "ThreadPoolExecutor": turn(lambda items: submitted(all_.executor, items)),
            },
            rounds=11,
        )


@contextmanager
def apply(setting: Setting) -> Iterator[Contest]:
    """One call at a time."""
    calls = setting.count(500, 5)
    with opened() as all_:
        runs = {
            "ours": lambda number: all_.ours.apply(no_op, (number,)),
            "ThreadPool": lambda number: all_.pool.apply(no_op, (number,)),
            "ThreadPoolExecutor": lambda number: all_.executor.submit(no_op, number).result(),
        }
        turns = {
            name: timed(run, int, lambda number, result: number == result, calls=calls)
            for name, run in runs.items()
        }
        yield Contest(contenders=turns, pins=("two", "one"), rounds=11)


CONTESTS: dict[str, Making] = {
    "stream": threads,
    "map": mapped,
    "imap": ordered,
    "futures": futures,
    "apply": apply,
}
