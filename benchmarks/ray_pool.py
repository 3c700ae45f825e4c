"""A thousand tiny tasks on a Ray cluster: our pool beside Ray's own, on the same cluster.

Every task does nothing: what is measured is what the pool costs. Both have two workers, which have
run a task before, and Ray's has its chunks as it likes them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pparallel
from benchmarks.harness import Aim, Contest, Making, Setting, timed
from benchmarks.many import Run, applied, many, mapped
from benchmarks.ours import WORKERS
from benchmarks.tasks import no_op

PEER = "ray.util.multiprocessing.Pool"
_CPUS = 2 * WORKERS  #: what Ray counts by: each worker reserves one


def asynchronous(pool: Any, items: range) -> Iterable[int]:
    """Hand all items over one by one, and collect the results."""
    handles = [pool.apply_async(no_op, (each,)) for each in items]
    return [each.get() for each in handles]


@contextmanager
def on_one_cluster(setting: Setting) -> Iterator[dict[str, Any]]:
    """Open both pools, on a cluster that our pool starts."""
    own = {"backend": "ray", "size": WORKERS, "cluster": {"num_cpus": _CPUS}}
    with pparallel.build({"pool": own}) as rt:
        pools = {"ours": rt.pool}
        rt.pool.map(no_op, range(WORKERS))
        theirs = importlib.import_module(PEER.rpartition(".")[0]).Pool(WORKERS)
        theirs.map(no_op, range(WORKERS), chunksize=1)
        try:
            yield {**pools, PEER: theirs}
        finally:
            theirs.terminate()
            theirs.join()


@contextmanager
def all_at_once(run: Any, setting: Setting) -> Iterator[Contest]:
    """Hand a thousand tasks over, in the way of *run*."""
    turn = many(setting.count(1000, 20))
    with on_one_cluster(setting) as pools:
        contenders = {name: turn(_bound(run, pool)) for name, pool in pools.items()}
        yield Contest(contenders=contenders, aims=[Aim(PEER, 5)], pins=("two",), rounds=7)


@contextmanager
def one_by_one(setting: Setting) -> Iterator[Contest]:
    """Make one call after the other, each waited for."""
    calls = setting.count(100, 5)
    with on_one_cluster(setting) as pools:
        contenders = {
            name: timed(
                _bound(applied, pool), int, lambda number, found: number == found, calls=calls
            )
            for name, pool in pools.items()
        }
        yield Contest(contenders=contenders, aims=[Aim(PEER, 1, "p50")], pins=("two",), rounds=7)


def _bound(run: Any, pool: Any) -> Run:
    return lambda items: run(pool, items)


CONTESTS: dict[str, Making] = {
    "map": lambda setting: all_at_once(mapped, setting),
    "apply_async": lambda setting: all_at_once(asynchronous, setting),
    "apply": one_by_one,
}
