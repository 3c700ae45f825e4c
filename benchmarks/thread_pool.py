"""Our thread pool beside those of the standard library, interleaved in one run.

``python benchmarks/thread_pool.py [--json] [--rounds N]``: microseconds per task, medians over
the rounds, and how many times as long ours takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from multiprocessing.pool import ThreadPool as PeerPool
from time import perf_counter

import pparallel
from pparallel.interfaces.pool import Pool
from pparallel_local import ThreadPoolConfig

WORKERS = 2
Run = Callable[[range], list[int]]


def no_op(number: int) -> int:
    """Do nothing."""
    return number


@contextmanager
def runs() -> Iterator[dict[str, tuple[int, dict[str, Run]]]]:
    """The measures: how many tasks, and who runs them."""
    with ExitStack() as stack:
        pool: Pool = pparallel.build(ThreadPoolConfig(size=WORKERS))
        ours = stack.enter_context(pool)
        peer = stack.enter_context(PeerPool(WORKERS))
        executor = stack.enter_context(ThreadPoolExecutor(WORKERS))
        yield {
            "map": (
                100_000,
                {
                    "ours": lambda items: ours.map(no_op, items),
                    "ThreadPool": lambda items: peer.map(no_op, items),
                },
            ),
            "imap_unordered": (
                10_000,
                {
                    "ours": lambda items: list(ours.imap_unordered(no_op, items)),
                    "ThreadPool": lambda items: list(peer.imap_unordered(no_op, items)),
                },
            ),
            "imap": (
                10_000,
                {
                    "ours": lambda items: list(ours.imap(no_op, items)),
                    "ThreadPool": lambda items: list(peer.imap(no_op, items)),
                },
            ),
            "submit": (
                10_000,
                {
                    "ours": lambda items: _collected([ours.submit(no_op, each) for each in items]),
                    "ThreadPoolExecutor": lambda items: _collected(
                        [executor.submit(no_op, each) for each in items]
                    ),
                },
            ),
            "apply": (
                500,
                {
                    "ours": lambda items: [ours.apply(no_op, (each,)) for each in items],
                    "ThreadPool": lambda items: [peer.apply(no_op, (each,)) for each in items],
                    "ThreadPoolExecutor": lambda items: [
                        executor.submit(no_op, each).result() for each in items
                    ],
                },
            ),
        }


def measure(rounds: int) -> list[dict[str, str | float]]:
    """Return one row per measure and peer."""
    rows: list[dict[str, str | float]] = []
    with runs() as measures:
        for name, (count, runners) in measures.items():
            times: dict[str, list[float]] = {who: [] for who in runners}
            for turn in range(rounds + 1):
                items = range(turn, turn + count)  # different arguments in every round
                for who, run in runners.items():
                    began = perf_counter()
                    results = run(items)
                    took = perf_counter() - began
                    assert sorted(results) == list(items)
                    times[who] += [took] if turn else []  # the first round warms up
            medians = {who: statistics.median(each) / count * 1e6 for who, each in times.items()}
            rows += [
                {
                    "measure": name,
                    "tasks": count,
                    "ours_us": medians["ours"],
                    "peer": who,
                    "peer_us": median,
                    "ratio": medians["ours"] / median,
                }
                for who, median in medians.items()
                if who != "ours"
            ]
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    rows = measure(options.rounds)
    sys.stdout.write(json.dumps(rows, indent=2) if options.json else _table(rows))
    sys.stdout.write("\n")


def _table(rows: list[dict[str, str | float]]) -> str:
    titles = list(rows[0])
    lines = [titles, ["---"] * len(titles)]
    lines += [[_shown(row[title]) for title in titles] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(value: str | float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _collected(futures: Sequence[Future[int]]) -> list[int]:
    return [each.result() for each in as_completed(futures)]


if __name__ == "__main__":
    main()
