"""Contests of tasks that do nothing: who contends, and how each is used, is data.

The same call often fits both: our pools have the methods of ``multiprocessing.Pool``, and
``submit`` as executors have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any, NamedTuple

from benchmarks.harness import Aim, Contest, Making, Setting, Turn, timed
from benchmarks.ours import WORKERS, our_pool
from benchmarks.tasks import no_op
from pparallel.interfaces.pool import Pool

Results = Iterable[int]
Run = Callable[[Any], Any]
Opened = Callable[[Setting], AbstractContextManager[Any]]


class Side(NamedTuple):
    """A contender: what opens its pool, and what is then called with the pool and an argument."""

    opened: Opened
    run: Callable[[Any, Any], Any]


@contextmanager
def many_tasks(
    sides: Mapping[str, Side],
    tasks: int,
    setting: Setting,
    *,
    aims: Sequence[Aim] = (),
    pins: Sequence[str] = ("two",),
    rounds: int = 7,
) -> Iterator[Contest]:
    """Open all sides, each of which is handed so many tasks at once, as a range."""
    turn = many(setting.count(tasks, 20))
    with _open(sides, setting) as runs:
        contenders = {name: turn(run) for name, run in runs.items()}
        yield Contest(contenders=contenders, aims=aims, pins=pins, rounds=rounds)


@contextmanager
def one_by_one(
    sides: Mapping[str, Side],
    calls: int,
    setting: Setting,
    *,
    aims: Sequence[Aim] = (),
    pins: Sequence[str] = ("two",),
    rounds: int = 7,
) -> Iterator[Contest]:
    """Open all sides, each of which is handed one number at a time, and waited for."""
    calls = setting.count(calls, 5)
    with _open(sides, setting) as runs:
        contenders = {
            name: timed(run, int, lambda number, result: number == result, calls=calls)
            for name, run in runs.items()
        }
        yield Contest(contenders=contenders, aims=aims, pins=pins, rounds=rounds)


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


# -- who contends ------------------------------------------------------------------------------


def ours(setting: Setting) -> AbstractContextManager[Pool]:
    """Give the pool that is measured as ours."""
    return our_pool(setting.backend)


def our_threads(_: Setting) -> AbstractContextManager[Pool]:
    """Give our thread pool."""
    return our_pool("thread")


def peer(opened: Callable[[], AbstractContextManager[Any]]) -> Opened:
    """Return what opens a peer's pool, whatever the user asked for."""
    return lambda _: opened()


# -- how a pool is used ------------------------------------------------------------------------


def mapped(pool: Any, items: range) -> Results:
    """Have the pool map, in chunks as it likes them."""
    found: Results = pool.map(no_op, items)
    return found


def streamed(pool: Any, items: range) -> Results:
    """Take the results as they come."""
    found: Results = pool.imap_unordered(no_op, items)
    return found


def streamed_in_order(pool: Any, items: range) -> Results:
    """Take the results in the order of the items."""
    found: Results = pool.imap(no_op, items)
    return found


def submitted(pool: Any, items: range) -> Results:
    """Submit all items, and collect the results as they are completed."""
    futures: list[Future[int]] = [pool.submit(no_op, each) for each in items]
    return [each.result() for each in as_completed(futures)]


def applied(pool: Any, number: int) -> int:
    """Make one call, and wait for it."""
    found: int = pool.apply(no_op, (number,))
    return found


def submitted_alone(executor: Any, number: int) -> int:
    """Make one call of an executor, and wait for it."""
    found: int = executor.submit(no_op, number).result()
    return found


#: the stream on our thread pool, beside the standard library's
stream_on_threads: Making = partial(
    many_tasks,
    {
        "ours": Side(our_threads, streamed),
        "ThreadPool": Side(peer(lambda: ThreadPool(WORKERS)), streamed),
    },
    10_000,
    aims=[Aim("ThreadPool", 1)],
    pins=("two", "one"),
    rounds=15,
)


@contextmanager
def _open(sides: Mapping[str, Side], setting: Setting) -> Iterator[dict[str, Run]]:
    with ExitStack() as stack:
        yield {
            name: partial(side.run, stack.enter_context(side.opened(setting)))
            for name, side in sides.items()
        }
