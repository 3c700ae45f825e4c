"""Many small tasks through the process pool, beside the pools that it is to replace.

Every task does nothing, or next to nothing: what is measured is what the pool costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, as_completed
from contextlib import ExitStack, contextmanager
from multiprocessing.pool import ThreadPool

from benchmarks.harness import Aim, Contest, Making, Setting, timed
from benchmarks.harness.contest import Turn
from benchmarks.ours import WORKERS, our_pool
from benchmarks.peers import loky_executor, stock_executor, stock_pool
from benchmarks.tasks import add_seven, adder, no_op

Results = Iterable[int]
PINS = ("two", "one")


@contextmanager
def stream(setting: Setting) -> Iterator[Contest]:
    """A stream of tasks with the default arguments of each."""
    turn = many(setting.count(10_000, 20))
    with our_pool(setting.backend) as ours, stock_pool() as peer, loky_executor() as loky:
        yield Contest(
            contenders={
                "ours": turn(lambda items: ours.imap_unordered(no_op, items)),
                "multiprocessing.Pool": turn(lambda items: peer.imap_unordered(no_op, items)),
                "loky": turn(lambda items: loky.map(no_op, items)),
            },
            aims=[Aim("multiprocessing.Pool", 20), Aim("loky", 50)],
            pins=PINS,
        )


@contextmanager
def futures(setting: Setting) -> Iterator[Contest]:
    """A future for each task, collected as they are completed."""
    turn = many(setting.count(10_000, 20))
    with our_pool(setting.backend) as ours, stock_executor() as peer, loky_executor() as loky:
        yield Contest(
            contenders={
                "ours": turn(lambda items: collected(ours.submit(no_op, each) for each in items)),
                "ProcessPoolExecutor": turn(lambda items: submitted(peer, items)),
                "loky": turn(lambda items: submitted(loky, items)),
            },
            aims=[Aim("ProcessPoolExecutor", 5)],
            pins=PINS,
            rounds=5,
        )


@contextmanager
def closure(setting: Setting) -> Iterator[Contest]:
    """The stream with a closure, a new one in every round, beside ours with a plain function."""
    items = range(setting.count(10_000, 20))
    with our_pool(setting.backend) as ours:

        def turn(make: Callable[[int], Callable[[int], int]]) -> Turn:
            def run(function: Callable[[int], int]) -> list[int]:
                return list(ours.imap_unordered(function, items))

            def right(function: Callable[[int], int], results: list[int]) -> bool:
                return sorted(results) == [*map(function, items)]

            return timed(run, make, right, tasks=len(items))

        yield Contest(
            contenders={
                "ours, closure": turn(adder),
                "ours, plain function": turn(lambda _: add_seven),
            },
            aims=[Aim("ours, plain function", 0.8)],
            pins=PINS,
            rounds=15,
        )


@contextmanager
def threads(setting: Setting) -> Iterator[Contest]:
    """The stream on our thread pool."""
    turn = many(setting.count(10_000, 20))
    with our_pool("thread") as ours, ThreadPool(WORKERS) as peer:
        yield Contest(
            contenders={
                "ours": turn(lambda items: ours.imap_unordered(no_op, items)),
                "ThreadPool": turn(lambda items: peer.imap_unordered(no_op, items)),
            },
            aims=[Aim("ThreadPool", 1)],
            pins=PINS,
            rounds=15,
        )


@contextmanager
def mapped(setting: Setting) -> Iterator[Contest]:
    """A map with the default chunks of each."""
    turn = many(setting.count(100_000, 20))
    with our_pool(setting.backend) as ours, stock_pool() as peer:
        yield Contest(
            contenders={
                "ours": turn(lambda items: ours.map(no_op, items)),
                "multiprocessing.Pool": turn(lambda items: peer.map(no_op, items)),
            },
            aims=[Aim("multiprocessing.Pool", 0.87)],
            pins=PINS,
            rounds=15,
        )


@contextmanager
def apply(setting: Setting) -> Iterator[Contest]:
    """One call at a time, the caller waiting for it."""
    calls = setting.count(400, 5)
    with ExitStack() as stack:
        ours = stack.enter_context(our_pool(setting.backend))
        peer = stack.enter_context(stock_pool())
        executor = stack.enter_context(stock_executor())

        def turn(run: Callable[[int], int]) -> Turn:
            return timed(run, int, lambda number, result: number == result, calls=calls)

        yield Contest(
            contenders={
                "ours": turn(lambda number: ours.apply(no_op, (number,))),
                "multiprocessing.Pool": turn(lambda number: peer.apply(no_op, (number,))),
                "ProcessPoolExecutor": turn(lambda n: executor.submit(no_op, n).result()),
            },
            aims=[
                Aim("multiprocessing.Pool", 4, "p50"),
                Aim("multiprocessing.Pool", 5, "p99"),
                Aim("multiprocessing.Pool", 1, "cpu"),
            ],
            pins=("one", "apart", "two"),
            rounds=9,
        )


def many(tasks: int) -> Callable[[Callable[[range], Results]], Turn]:
    """Return what makes a turn of so many tasks, whose arguments differ in every round."""

    def turn(run: Callable[[range], Results]) -> Turn:
        return timed(
            lambda items: list(run(items)),
            lambda number: range(number, number + tasks),
            lambda items, results: sorted(results) == list(items),
            tasks=tasks,
        )

    return turn


def submitted(executor: Executor, items: range) -> Results:
    """Submit a task for each item to a peer, and collect the results."""
    return collected(executor.submit(no_op, each) for each in items)


def collected(submitted: Iterable[Future[int]]) -> Results:
    """Collect the results as they come, once all have been submitted."""
    return [each.result() for each in as_completed(list(submitted))]


CONTESTS: dict[str, Making] = {
    "stream": stream,
    "futures": futures,
    "closure": closure,
    "stream on threads": threads,
    "map": mapped,
    "apply": apply,
}
