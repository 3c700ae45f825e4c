"""How calls are run, and what their handles do."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, as_completed
from functools import partial
from pathlib import Path

import pytest

from pparallel.errors import ClosedError, TaskTimeoutError
from pparallel.interfaces.pool import Pool
from pparallel.testing.gate import Gate
from pparallel.testing.patience import AGES, PATIENCE
from pparallel.testing.pool.base import Make, PoolTests
from pparallel.testing.pool.tasks import (
    double,
    double_late,
    given,
    note,
    noted,
    power,
    refuse,
    same,
)
from pparallel.testing.suite import requires
from pparallel.testing.threads import in_threads


class CallTests(PoolTests):
    """Tests of ``apply``, ``map``, ``starmap``, ``submit`` and of handles."""

    def test_every_task_runs_once(self, make: Make, notes: Path) -> None:
        run = partial(note, notes)
        with make(size=2) as pool:
            pool.map(run, range(500))
            pool.starmap(note, [(notes, each) for each in range(500, 700)])
            assert sorted(pool.imap(run, range(700, 1000))) == list(range(700, 1000))
            assert sorted(pool.imap_unordered(run, range(1000, 1300))) == list(range(1000, 1300))
            for each in [pool.submit(note, notes, each) for each in range(1300, 1500)]:
                each.result()
        assert Counter(noted(notes)) == Counter(map(str, range(1500)))

    def test_every_task_of_many_threads_runs_once(self, pool: Pool, notes: Path) -> None:
        def work(thread: int) -> None:
            own = [pool.submit(note, notes, f"{thread}.{each}") for each in range(50)]
            results.extend(each.result(PATIENCE) for each in own)

        results: list[str] = []
        in_threads(8, work)
        expected = Counter(f"{thread}.{each}" for thread in range(8) for each in range(50))
        assert Counter(results) == Counter(noted(notes)) == expected

    def test_results_are_in_order(self, pool: Pool) -> None:
        expected = [2 * each for each in range(1000)]
        assert pool.map(double, range(1000)) == expected
        assert pool.map_async(double, iter(range(1000))).get() == expected
        assert list(pool.imap(double, range(1000))) == expected
        assert pool.starmap(power, [(each, 1) for each in range(1000)]) == list(range(1000))

    def test_tasks_start_in_order(self, make: Make, notes: Path) -> None:
        run = partial(note, notes)
        with make(size=1) as pool:
            assert pool.map(run, range(100)) == list(range(100))
            assert list(pool.imap(run, range(100, 200))) == list(range(100, 200))
        assert noted(notes) == [str(each) for each in range(200)]

    def test_how_arguments_are_passed(self, pool: Pool) -> None:
        assert pool.apply(given) == ({},)
        assert pool.apply(given, [1, 2], {"third": 3}) == (1, 2, {"third": 3})
        assert pool.apply_async(given, (1,), {"fn": 2}).get() == (1, {"fn": 2})
        assert pool.submit(given, 1, fn=2, self=3).result() == (1, {"fn": 2, "self": 3})
        assert pool.map(given, [(1, 2)]) == [((1, 2), {})]
        assert pool.starmap(given, [(1, 2), iter("ab"), ()]) == [(1, 2, {}), ("a", "b", {}), ({},)]
        assert pool.starmap_async(power, [(2, 3)]).get() == [8]

    def test_chunks_make_no_difference(self, pool: Pool) -> None:
        for chunksize in (1, 7, 1000):
            assert pool.map(double, range(50), chunksize) == [2 * each for each in range(50)]
            assert list(pool.imap(double, range(9), chunksize)) == [2 * each for each in range(9)]
        for chunked in (pool.map, pool.imap, pool.imap_unordered, pool.map_async):
            with pytest.raises(ValueError, match="chunksize"):
                chunked(double, [1], 0)

    def test_nothing_to_do(self, pool: Pool) -> None:
        seen: list[object] = []
        assert pool.map(double, []) == pool.starmap(power, iter(())) == []
        assert list(pool.imap(double, [])) == list(pool.imap_unordered(double, iter(()))) == []
        assert pool.map_async(double, [], callback=seen.append).get() == []
        assert seen == [[]]

    def test_what_is_no_function(self, pool: Pool) -> None:
        calls: list[Callable[..., object]] = [pool.map, pool.map_async, pool.starmap]
        calls += [pool.imap, pool.imap_unordered, pool.apply, pool.apply_async, pool.submit]
        for call in calls:
            with pytest.raises(TypeError, match="3 is not callable"):
                call(3, [])
        assert pool.apply(double, (1,)) == 2

    def test_callbacks(self, pool: Pool) -> None:
        values: list[object] = []
        errors: list[BaseException] = []
        pool.apply_async(double, (1,), {}, values.append, errors.append).get()
        pool.map_async(double, range(3), None, values.append, errors.append).get()
        assert values == [2, [0, 2, 4]]
        assert errors == []
        failing = pool.map_async(refuse, range(3), None, values.append, errors.append)
        failing.wait()
        single = pool.apply_async(refuse, (3,), None, values.append, errors.append)
        single.wait()
        assert errors == [failing.exception(), single.exception()]
        assert len(values) == 2

    @requires("parallel")
    def test_a_result_waits_for_its_callback(self, pool: Pool, gate: Gate) -> None:
        handle = pool.apply_async(double, (1,), callback=gate.pass_through)
        gate.arrived()
        assert not handle.ready()
        gate.open()
        assert handle.get(PATIENCE) == 2

    def test_ready_and_successful(self, pool: Pool) -> None:
        good, bad = pool.apply_async(double, (1,)), pool.apply_async(refuse, (1,))
        assert good.wait(PATIENCE)
        assert bad.wait(PATIENCE)
        assert (good.ready(), good.successful()) == (True, True)
        assert (bad.ready(), bad.successful()) == (True, False)

    @requires("parallel")
    def test_timeouts(self, pool: Pool, gate: Gate) -> None:
        handle = pool.submit(gate.pass_through, 1)
        for wait in (handle.get, handle.result, handle.exception):
            with pytest.raises(TaskTimeoutError) as caught:
                wait(0.01)
            assert isinstance(caught.value, TimeoutError)
            assert isinstance(caught.value, multiprocessing.TimeoutError)
        assert not handle.wait(0)
        assert not handle.ready()
        with pytest.raises(ValueError, match="not ready"):
            handle.successful()
        gate.open()
        assert handle.get(PATIENCE) == 1

    def test_a_time_limit_may_be_long(self, pool: Pool) -> None:
        assert pool.submit(double_late, 2).get(AGES) == 4
        assert pool.submit(double_late, 2).wait(AGES)
        assert pool.imap(double_late, [2]).next(AGES) == 4

    @requires("parallel")
    def test_cancel_before_the_start(self, make: Make, gate: Gate, notes: Path) -> None:
        with make(size=1) as pool:
            running = pool.submit(gate.pass_through)
            gate.arrived()
            waiting = pool.submit(note, notes, "submit")
            mapped = pool.map_async(partial(note, notes), range(100))
            assert not running.cancel()
            assert waiting.cancel()
            assert mapped.cancel()
            for cancelled in (waiting, mapped):
                assert cancelled.ready()
                assert not cancelled.successful()
                with pytest.raises(CancelledError):
                    cancelled.result()
            gate.open()
            assert running.get() is None
        assert noted(notes) == []

    @requires("parallel")
    def test_no_cancelling_after_the_start(self, make: Make, gate: Gate) -> None:
        with make(size=1) as pool:
            mapped = pool.map_async(gate.pass_through, range(3))
            gate.arrived()
            assert not mapped.cancel()
            gate.open()
            assert mapped.get(PATIENCE) == [0, 1, 2]

    def test_handles_can_be_awaited(self, pool: Pool) -> None:
        async def both() -> tuple[int, list[int]]:
            one, many = pool.submit(double, 4), pool.map_async(double, [1, 2])
            return await one, await many

        assert asyncio.run(both()) == (8, [2, 4])

    def test_executor(self, pool: Pool) -> None:
        with pool.as_executor() as executor:
            assert isinstance(executor, Executor)
            futures = {executor.submit(power, each, exponent=3): each for each in range(100)}
            assert all(isinstance(each, Future) for each in futures)
            assert {futures[each]: each.result() for each in as_completed(futures)} == {
                each: each**3 for each in range(100)
            }
            assert list(executor.map(power, range(5), range(5))) == [1, 1, 4, 27, 256]
        with pytest.raises(ClosedError, match="executor"):
            executor.submit(double, 1)
        assert pool.apply(double, (1,)) == 2

    def test_executor_of_an_event_loop(self, pool: Pool) -> None:
        async def run() -> int:
            return await asyncio.get_running_loop().run_in_executor(pool.as_executor(), double, 3)

        assert asyncio.run(run()) == 6

    def test_finished_tasks_are_forgotten(self, pool: Pool) -> None:
        class Large:
            pass

        large, gone = Large(), threading.Event()
        weakref.finalize(large, gone.set)
        assert pool.submit(isinstance, large, object).result()
        assert pool.map(callable, [large]) == [False]
        assert list(pool.imap(callable, [large])) == [False]
        del large
        assert gone.wait(PATIENCE)
        gone.clear()
        weakref.finalize(pool.submit(same, Large()).result(), gone.set)
        assert gone.wait(PATIENCE)

    @requires("references")
    def test_passes_references(self, pool: Pool) -> None:
        values = [object(), object()]
        assert pool.submit(same, values).result() is values
        assert all(map(lambda a, b: a is b, pool.map(same, values), values))
        assert all(map(lambda a, b: a is b, pool.imap(same, values), values))
