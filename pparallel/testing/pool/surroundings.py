"""Where pools are used: in threads, in tasks of other pools, in a job with a seed."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from operator import neg
from pathlib import Path
from typing import Any

import pytest

from pparallel.builder import RuntimeConfig
from pparallel.builder import build as registered
from pparallel.interfaces.pool import Pool, PoolConfig
from pparallel.testing.gate import Gate
from pparallel.testing.patience import PATIENCE
from pparallel.testing.pool.base import Gates, Make, PoolTests
from pparallel.testing.pool.tasks import double, note, noted, own_pid
from pparallel.testing.suite import changed, requires
from pparallel.testing.threads import in_threads


class SurroundingsTests(PoolTests):
    """Tests of pools in threads and in tasks, of several at once, and of random streams."""

    def test_many_threads_mix_calls(self, pool: Pool, notes: Path) -> None:
        def work(thread: int) -> None:
            own = range(1000 * thread, 1000 * thread + 90)
            run = partial(note, notes)
            for _ in range(2):
                assert pool.map(double, range(20)) == list(range(0, 40, 2))
            handles = [pool.submit(note, notes, each) for each in own[:30]]
            stream = pool.imap(run, own[30:60])
            assert pool.map(run, own[60:]) == list(own[60:])
            assert pool.apply(double, (thread,)) == 2 * thread
            assert [stream.next(PATIENCE) for _ in range(30)] == list(own[30:60])
            assert [each.result(PATIENCE) for each in handles] == list(own[:30])

        in_threads(6, work)
        expected = (str(1000 * thread + each) for thread in range(6) for each in range(90))
        assert Counter(noted(notes)) == Counter(expected)

    def test_a_pool_outlives_the_thread_that_opened_it(self, make: Make) -> None:
        pool = make(size=2)
        _in_a_thread(pool.open)
        assert pool.map(double, range(100)) == list(range(0, 200, 2))
        assert _in_a_thread(lambda: pool.map(double, range(100))) == list(range(0, 200, 2))
        assert list(pool.imap(double, range(100))) == list(range(0, 200, 2))
        _in_a_thread(pool.close)
        _in_a_thread(pool.join)

    def test_two_pools_at_once(self, make: Make) -> None:
        with make(size=2) as one, make(size=1) as other:
            streams = [each.imap(double, range(200)) for each in (one, other)]
            handles = [each.submit(double, 4) for each in (one, other) * 20]
            for expected in range(0, 400, 2):
                assert [next(each) for each in streams] == [expected] * 2
            assert {each.result(PATIENCE) for each in handles} == {8}
            one.terminate()
            assert other.map(double, range(9)) == list(range(0, 18, 2))

    @requires(lacking=("references",))
    def test_a_pool_in_a_task(self, config: PoolConfig, build: Any, make: Make) -> None:
        # What workers preload, a server of the task's own would have to import anew.
        nothing = {"preload": ()} if "preload" in type(config).model_fields else {}
        inner = changed(config, size=2, **nothing)
        with make(size=1) as pool:
            assert pool.map(partial(_nested, build, inner), [2, 3]) == [[0, -1], [0, -1, -2]]
            assert pool.submit(_nested, build, inner, 4).get(PATIENCE) == [0, -1, -2, -3]

    @requires("isolated", "parallel")
    def test_workers_are_processes(self, make: Make, gate: Gate) -> None:
        with make(size=2) as pool:
            found = pool.map_async(partial(own_pid, gate), range(2))
            gate.arrived(2)
            gate.open()
            pids = set(found.get(PATIENCE))
        assert len(pids) == 2
        assert os.getpid() not in pids

    @requires("isolated", "parallel")
    def test_worker_streams(self, config: PoolConfig, build: Any, gates: Gates) -> None:
        if build is not registered:
            pytest.skip("a backend that is not registered is part of no runtime")

        def drawn(**seed: int) -> list[tuple[int, list[float]]]:
            own = changed(config, size=2, worker_contexts=(0, 1))
            gate = gates()
            with registered(RuntimeConfig(pool=own, **seed)) as rt:
                draws = rt.pool.starmap_async(_draw, [(gate,)] * 2)
                gate.arrived(2)
                gate.open()
                return sorted(draws.get(PATIENCE))

        first, second, other, unseeded = drawn(seed=3), drawn(seed=3), drawn(seed=4), drawn()
        assert first == second
        draws = [tuple(values) for each in (first, other, unseeded) for _, values in each]
        assert len(set(draws)) == 6, "two workers draw the same numbers"


def _in_a_thread(call: Callable[[], Any]) -> Any:
    def run() -> None:
        found.append(call())

    found: list[Any] = []
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found, "it did not return"
    return found[0]


def _nested(build: Callable[[PoolConfig], Pool], config: PoolConfig, count: int) -> list[int]:
    with build(config) as pool:
        return pool.map(neg, range(count))


def _draw(context: int, gate: Gate) -> tuple[int, list[float]]:
    gate.pass_through()
    return context, [random.random() for _ in range(3)]
