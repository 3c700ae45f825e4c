"""Many small tasks through the process pool, beside the pools that it is to replace.

Every task does nothing, or next to nothing: what is measured is what the pool costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.harness import Aim, Contest, Making, Setting, Turn, timed
from benchmarks.many import (
    Side,
    applied,
    many_tasks,
    mapped,
    one_by_one,
    ours,
    peer,
    stream_on_threads,
    streamed,
    submitted,
    submitted_alone,
)
from benchmarks.ours import our_pool
from benchmarks.peers import loky_executor, stock_executor, stock_pool
from benchmarks.tasks import add_seven, adder

Function = Callable[[int], int]
Work = tuple[Function, range]
PINS = ("two", "one")
STOCK, EXECUTOR, LOKY = "multiprocessing.Pool", "ProcessPoolExecutor", "loky"


@contextmanager
def closure(setting: Setting) -> Iterator[Contest]:
    """The stream with a closure, a new one in every round, beside ours with a plain function."""
    tasks = setting.count(10_000, 20)
    with our_pool(setting.backend) as pool:

        def run(work: Work) -> list[int]:
            return list(pool.imap_unordered(*work))

        def right(work: Work, results: list[int]) -> bool:
            return sorted(results) == [*map(*work)]

        def turn(make: Callable[[int], Function]) -> Turn:
            def prepare(number: int) -> Work:
                return make(number), range(number, number + tasks)

            return timed(run, prepare, right, tasks=tasks)

        yield Contest(
            contenders={
                "ours, closure": turn(adder),
                "ours, plain function": turn(lambda _: add_seven),
            },
            aims=[Aim("ours, plain function", 0.8)],
            pins=PINS,
            rounds=15,
        )


CONTESTS: dict[str, Making] = {
    "stream": partial(
        many_tasks,
        {
            "ours": Side(ours, streamed),
            STOCK: Side(peer(stock_pool), streamed),
            LOKY: Side(peer(loky_executor), mapped),
        },
        10_000,
        aims=[Aim(STOCK, 20), Aim(LOKY, 50)],
        pins=PINS,
    ),
    "futures": partial(
        many_tasks,
        {
            "ours": Side(ours, submitted),
            EXECUTOR: Side(peer(stock_executor), submitted),
            LOKY: Side(peer(loky_executor), submitted),
        },
        10_000,
        aims=[Aim(EXECUTOR, 5)],
        pins=PINS,
        rounds=5,
    ),
    "closure": closure,
    "stream on threads": stream_on_threads,
    "map": partial(
        many_tasks,
        {"ours": Side(ours, mapped), STOCK: Side(peer(stock_pool), mapped)},
        100_000,
        aims=[Aim(STOCK, 0.87)],
        pins=PINS,
        rounds=15,
    ),
    "apply": partial(
        one_by_one,
        {
            "ours": Side(ours, applied),
            STOCK: Side(peer(stock_pool), applied),
            EXECUTOR: Side(peer(stock_executor), submitted_alone),
        },
        400,
        aims=[Aim(STOCK, 4, "p50"), Aim(STOCK, 5, "p99"), Aim(STOCK, 1, "cpu")],
        pins=("one", "apart", "two"),
        rounds=9,
    ),
}
