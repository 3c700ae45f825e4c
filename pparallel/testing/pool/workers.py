"""What a pool's workers are, and how they start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pparallel.errors import ConfigError
from pparallel.interfaces.pool import Pool
from pparallel.testing.gate import Gate
from pparallel.testing.patience import PATIENCE
from pparallel.testing.pool.base import Make, PoolTests
from pparallel.testing.pool.tasks import Refused, double, given, note_and_refuse, noted
from pparallel.testing.suite import requires

_NOTE = "pparallel.testing.pool.tasks:note"


class WorkerTests(PoolTests):
    """Tests of size, initializers, contexts and nested use."""

    def test_size(self, make: Make) -> None:
        for size in (1, 3):
            with make(size=size) as pool:
                assert pool.size() == size
                assert pool.map(double, range(9)) == list(range(0, 18, 2))
        with make() as pool:
            assert pool.size() >= 1

    def test_a_size_that_is_none(self, make: Make) -> None:
        with pytest.raises(ConfigError, match="size"):
            make(size=0)

    @requires("parallel")
    def test_tasks_overlap(self, make: Make, gate: Gate) -> None:
        with make(size=3) as pool:
            handle = pool.map_async(gate.pass_through, range(3))
            gate.arrived(3)
            gate.open()
            assert handle.get(PATIENCE) == [0, 1, 2]

    @requires("parallel")
    def test_a_worker_runs_one_task_at_a_time(self, make: Make, gate: Gate) -> None:
        with make(size=2) as pool:
            pool.map_async(gate.pass_through, range(2))
            gate.arrived(2)
            third = pool.submit(double, 1)
            assert not third.wait(0.2)
            gate.open()
            assert third.get(PATIENCE) == 2

    def test_an_initializer_runs_first(self, make: Make, notes: Path) -> None:
        with make(size=2, initializer=_NOTE, initargs=(notes, "ready")) as pool:
            assert noted_by(pool, notes)[0] == "ready"
        assert 1 <= noted(notes).count("ready") <= 2

    def test_an_initializer_that_raises(self, make: Make, notes: Path) -> None:
        with make(size=2, initializer=note_and_refuse, initargs=(notes,)) as pool:
            handles = [pool.submit(double, each) for each in range(20)]
            stream = pool.imap(double, range(20))
            waits: list[Callable[[], object]] = [each.get for each in handles]
            for wait in (*waits, stream.next):
                with pytest.raises(Refused, match=r"^refused to start$"):
                    wait()
            for _ in range(3):
                with pytest.raises(Refused, match=r"^refused to start$"):
                    pool.map(double, range(20))
        assert 1 <= len(noted(notes)) <= 3

    def test_an_initializer_that_does_not_exist(self, make: Make) -> None:
        with pytest.raises(ConfigError, match="module:function"):
            make(initializer="nothing")
        with (
            make(size=1, initializer="pparallel.nowhere:nothing") as pool,
            pytest.raises(ModuleNotFoundError, match="nowhere"),
        ):
            pool.apply(double, (1,))

    def test_worker_contexts(self, make: Make) -> None:
        with make(size=2, worker_contexts=("a", "b")) as pool:
            for context, item, _ in pool.map(given, range(20)):
                assert context in ("a", "b")
                assert item in range(20)
            assert pool.submit(given, 1, two=2).result() in (
                ("a", 1, {"two": 2}),
                ("b", 1, {"two": 2}),
            )
            assert pool.starmap(given, [(1, 2)])[0][1:] == (1, 2, {})
            assert all(each[0] in "ab" for each in pool.imap(given, range(20)))
        with make(size=None, worker_contexts=(None, None, None)) as pool:
            assert pool.size() == 3
            assert pool.map(given, [1]) == [(None, 1, {})]

    @requires("parallel")
    def test_each_worker_has_its_context(self, make: Make, gate: Gate) -> None:
        with make(size=3, worker_contexts=(1, 2, 3)) as pool:
            handle = pool.starmap_async(_with_context, [(gate,)] * 3)
            gate.arrived(3)
            gate.open()
            assert sorted(handle.get(PATIENCE)) == [1, 2, 3]

    def test_contexts_of_two_pools_do_not_mix(self, make: Make) -> None:
        with make(size=1, worker_contexts=("a",)) as a, make(size=1, worker_contexts=("b",)) as b:
            pairs = [(a.submit(given), b.submit(given)) for _ in range(20)]
            assert {(x.get()[0], y.get()[0]) for x, y in pairs} == {("a", "b")}

    def test_contexts_must_be_as_many_as_workers(self, make: Make) -> None:
        for contexts in (("a",), ("a", "b", "c")):
            with pytest.raises(ConfigError, match="not equal to the number of workers"):
                make(size=2, worker_contexts=contexts)

    @requires("references")
    def test_nested_use(self, make: Make) -> None:
        def leaves(depth: int) -> int:
            if depth == 0:
                return 1
            return sum(pool.map(leaves, [depth - 1] * 2)) + pool.apply(int)

        def streamed(depth: int) -> int:
            return sum(pool.imap(streamed, [depth - 1] * 2)) if depth else 1

        for size in (1, 2):
            with make(size=size) as pool:
                assert pool.map(leaves, [4, 3]) == [16, 8]
                assert pool.submit(streamed, 4).result() == 16


def _with_context(context: int, gate: Gate) -> int:
    gate.pass_through()
    return context


def noted_by(pool: Pool, notes: Path) -> list[str]:
    """Return what was noted before a task of *pool* ran."""
    return pool.apply(noted, (notes,))
