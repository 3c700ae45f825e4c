"""Tasks that last: short ones, long ones, and short ones with long ones behind them.

A task uses the processor for as long as it is said to. The stock pool is measured by ``map`` and
by ``imap``: ours has to be as quick as the quicker of the two, whichever way it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.harness import Aim, Contest, Making, Setting, timed
from benchmarks.harness.contest import Turn
from benchmarks.ours import our_pool
from benchmarks.peers import stock_pool
from benchmarks.tasks import work

Item = tuple[int, float]
OURS = ("ours, map", "ours, imap")
PEERS = ("multiprocessing.Pool, map", "multiprocessing.Pool, imap")


@contextmanager
def tasks(full: list[float], quick: list[float], setting: Setting) -> Iterator[Contest]:
    """Open all contenders for tasks of these seconds."""
    seconds = quick if setting.quick else full

    def turn(run: Callable[[list[Item]], Iterable[int]]) -> Turn:
        return timed(
            lambda items: list(run(items)),
            lambda turn: [(turn + place, each) for place, each in enumerate(seconds)],
            lambda items, results: results == [number for number, _ in items],
        )

    with our_pool(setting.backend) as ours, stock_pool() as peer:
        ways = (
            lambda items: ours.map(work, items),
            lambda items: ours.imap(work, items),
            lambda items: peer.map(work, items),
            lambda items: peer.imap(work, items),
        )
        yield Contest(
            contenders={name: turn(way) for name, way in zip((*OURS, *PEERS), ways, strict=True)},
            aims=[Aim(theirs, 1, ours=own) for own in OURS for theirs in PEERS],
            rounds=9,
        )


CONTESTS: dict[str, Making] = {
    "2,000 of 0.1 ms": partial(tasks, [1e-4] * 2000, [1e-4] * 10),
    "40 of 10 ms": partial(tasks, [1e-2] * 40, [1e-2] * 4),
    "1,000 of 10 us, then 4 of 20 ms": partial(
        tasks, [1e-5] * 1000 + [2e-2] * 4, [1e-5] * 10 + [2e-2] * 2
    ),
}
