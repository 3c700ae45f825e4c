"""Our thread pool beside those of the standard library."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.pool import ThreadPool

from benchmarks.harness import Aim, Making
from benchmarks.many import (
    Side,
    applied,
    many_tasks,
    mapped,
    one_by_one,
    our_threads,
    peer,
    stream_on_threads,
    streamed_in_order,
    submitted,
    submitted_alone,
)
from benchmarks.ours import WORKERS

POOL, EXECUTOR = "ThreadPool", "ThreadPoolExecutor"
pool = peer(lambda: ThreadPool(WORKERS))
executor = peer(lambda: ThreadPoolExecutor(WORKERS))

CONTESTS: dict[str, Making] = {
    "stream": stream_on_threads,
    "map": partial(
        many_tasks,
        {"ours": Side(our_threads, mapped), POOL: Side(pool, mapped)},
        100_000,
        rounds=11,
    ),
    "imap": partial(
        many_tasks,
        {"ours": Side(our_threads, streamed_in_order), POOL: Side(pool, streamed_in_order)},
        10_000,
        aims=[Aim(POOL, 1)],
        rounds=11,
    ),
    "futures": partial(
        many_tasks,
        {"ours": Side(our_threads, submitted), EXECUTOR: Side(executor, submitted)},
        10_000,
        rounds=11,
    ),
    "apply": partial(
        one_by_one,
        {
            "ours": Side(our_threads, applied),
            POOL: Side(pool, applied),
            EXECUTOR: Side(executor, submitted_alone),
        },
        500,
        pins=("two", "one"),
        rounds=11,
    ),
}
