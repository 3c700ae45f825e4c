"""A pool of no-op tasks with the event stream and nobody listening, beside the pool without it.

- ``idle``: the thread pool of a runtime, whose event stream nobody listens to;
- ``bare``: the thread pool itself, made from its class, with no event stream;
- ``bare again``: a second one; how far its ratio is from 1 is what chance does;
- ``heard``: the pool of a runtime with a listener of every event, which does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pparallel
from benchmarks.harness import Aim, Contest, Making, Setting
from benchmarks.many import many, mapped, streamed_in_order
from benchmarks.ours import WORKERS
from benchmarks.tasks import no_op
from pparallel.interfaces.pool import Pool
from pparallel.runtime.member import Member
from pparallel_local import ThreadPoolConfig
from pparallel_local.thread_pool import ThreadPool

Run = Callable[[Pool, range], Iterable[int]]


@contextmanager
def contest(tasks: int, rounds: int, run: Run, setting: Setting) -> Iterator[Contest]:
    """Open the pools; short turns and many of them, for the differences are small."""
    turn = many(setting.count(tasks, 20))
    with ExitStack() as stack:
        config = ThreadPoolConfig(size=WORKERS)
        bare, again = (stack.enter_context(ThreadPool(config, member=Member())) for _ in range(2))
        idle, heard = (
            stack.enter_context(pparallel.build({"pool": {"size": WORKERS}})) for _ in range(2)
        )
        heard.events.subscribe(lambda _: None)
        pools = {"idle": idle.pool, "bare": bare, "bare again": again, "heard": heard.pool}
        yield Contest(
            contenders={name: turn(partial(run, pool)) for name, pool in pools.items()},
            aims=[Aim("bare", 0.95), Aim("bare", 0.95, "cpu"), Aim("bare", 0.9, ours="bare again")],
            rounds=rounds,
        )


def submitted(pool: Pool, items: range) -> list[int]:
    """Submit all items, and collect the results in order."""
    return [each.result() for each in [pool.submit(no_op, item) for item in items]]


CONTESTS: dict[str, Making] = {
    "map": partial(contest, 20_000, 60, mapped),
    "submit": partial(contest, 2_000, 100, submitted),
    "imap": partial(contest, 5_000, 60, streamed_in_order),
}
