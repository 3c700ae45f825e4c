"""A pool of no-op tasks with the event stream and nobody listening, beside the pool without it.

``python benchmarks/events.py [--json] [--rounds N]``: microseconds per task, medians over the
rounds, for pools that run interleaved in one process:

- ``bare``: the thread pool itself, made from its class, with no event stream;
- ``idle``: the thread pool of a runtime, whose event stream nobody listens to;
- ``heard``: the same with a listener of every event, which does nothing.

``again`` is a second bare pool: how far its ratios are from 1 is what chance does. They are to the
bare pool, of the medians of the time that passed (``wall``) and of the processor time that was used
(``cpu``), and of the medians of the fastest quarter (``fast``).
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

import pparallel
from pparallel.interfaces.pool import Pool
from pparallel.runtime.member import Member
from pparallel_local import ThreadPoolConfig
from pparallel_local.thread_pool import ThreadPool

WORKERS = 2
HEARD = 5  #: rounds with a listener, whose cost is plain to see
Run = Callable[[Pool, range], list[int]]
Row = dict[str, str | float]


class Times(NamedTuple):
    """Seconds that one run took."""

    wall: float
    cpu: float


def no_op(number: int) -> int:
    """Do nothing."""
    return number


def submitted(pool: Pool, items: range) -> list[int]:
    """Submit all items, and collect the results in order."""
    return [each.result() for each in [pool.submit(no_op, item) for item in items]]


class Measure(NamedTuple):
    """What is run: *slices* times *tasks* in each round, the pools taking turns at each slice."""

    tasks: int
    slices: int
    run: Run


MEASURES = {
    "map": Measure(100_000, 1, lambda pool, items: pool.map(no_op, items)),
    "submit": Measure(2_000, 10, submitted),
    "imap": Measure(10_000, 5, lambda pool, items: list(pool.imap(no_op, items))),
}


@contextmanager
def pools() -> Iterator[dict[str, Pool]]:
    """The pools that are compared, all open."""
    with ExitStack() as stack:
        config = ThreadPoolConfig(size=WORKERS)
        bare, again = (stack.enter_context(ThreadPool(config, member=Member())) for _ in range(2))
        idle, heard = (
            stack.enter_context(pparallel.build({"pool": {"size": WORKERS}})) for _ in range(2)
        )
        heard.events.subscribe(lambda _: None)
        yield {"bare": bare, "idle": idle.pool, "again": again, "heard": heard.pool}


def measure(rounds: int) -> list[Row]:
    """Return one row per measure and pool."""
    rows: list[Row] = []
    with pools() as compared:
        for name, (tasks, slices, run) in MEASURES.items():
            quiet = [who for who in compared if who != "heard"]
            taken: dict[str, list[Times]] = {who: [] for who in compared}
            for turn in range((rounds + 1) * slices):
                items = range(turn, turn + tasks)  # different arguments in every slice
                for who in quiet:
                    times = timed(run, compared[who], items)
                    taken[who] += [times] if turn >= slices else []  # the first round warms up
                quiet.append(quiet.pop(0))  # nobody always comes after the same
            taken["heard"] += [timed(run, compared["heard"], items) for _ in range(HEARD * slices)]
            rows += [_row(name, tasks, slices, who, taken) for who in compared]
    return rows


def timed(run: Run, pool: Pool, items: range) -> Times:
    """Run once, and check what came of it."""
    gc.collect()
    wall, cpu = perf_counter(), process_time()
    results = run(pool, items)
    times = Times(perf_counter() - wall, process_time() - cpu)
    assert results == list(items)
    return times


def _row(name: str, tasks: int, slices: int, who: str, taken: dict[str, list[Times]]) -> Row:
    walls, cpus = zip(*taken[who], strict=True)
    bare_walls, bare_cpus = zip(*taken["bare"], strict=True)
    return {
        "measure": name,
        "tasks": tasks * slices,
        "pool": who,
        "wall_us": median(walls) / tasks * 1e6,
        "wall_ratio": median(walls) / median(bare_walls),
        "fast_wall_ratio": _fast(walls) / _fast(bare_walls),
        "cpu_ratio": median(cpus) / median(bare_cpus),
        "fast_cpu_ratio": _fast(cpus) / _fast(bare_cpus),
    }


def _fast(taken: Sequence[float]) -> float:
    """Return the median of the fastest quarter, which others on the machine disturbed least."""
    return median(sorted(taken)[: max(1, len(taken) // 4)])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    rows = measure(options.rounds)
    sys.stdout.write(json.dumps(rows, indent=2) if options.json else _table(rows))
    sys.stdout.write("\n")


def _table(rows: list[Row]) -> str:
    titles = list(rows[0])
    lines = [titles, ["---"] * len(titles)]
    lines += [[_shown(row[title]) for title in titles] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(value: str | float) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
