"""From making a pool to its first result to having closed it: warm, and with torch in this process.

The fork servers of both have been started, and have loaded the task, before the first round.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.harness import Aim, Contest, Making, Setting, timed
from benchmarks.harness.contest import Turn
from benchmarks.ours import WORKERS, our_pool
from benchmarks.peers import closing, executor, fork_server
from benchmarks.tasks import no_op


@contextmanager
def start(setting: Setting) -> Iterator[Contest]:
    """A whole life of a pool, again and again."""
    importlib.import_module("torch")
    context = fork_server()

    def ours(number: int) -> int:
        with our_pool(setting.backend) as pool:
            return pool.apply(no_op, (number,))

    def stock(number: int) -> int:
        with closing(context.Pool(WORKERS)) as pool:
            return pool.apply(no_op, (number,))

    def futures(number: int) -> int:
        with executor() as pool:
            return pool.submit(no_op, number).result()

    def turn(run: Callable[[int], int]) -> Turn:
        return timed(run, int, lambda number, result: number == result)

    yield Contest(
        contenders={
            "ours": turn(ours),
            "multiprocessing.Pool": turn(stock),
            "ProcessPoolExecutor": turn(futures),
        },
        aims=[Aim("multiprocessing.Pool", 1)],
        rounds=11,
    )


CONTESTS: dict[str, Making] = {"create, first result, close": start}
