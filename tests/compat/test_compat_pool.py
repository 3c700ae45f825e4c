"""What programs written for machin's pools do with them."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import compat_pool_tasks as tasks
import dill
import psutil
import pytest
from compat_pool_tasks import KINDS

from pparallel.compat.machin.pool import (
    AsyncResult,
    BasePool,
    IMapIterator,
    IMapUnorderedIterator,
    MapResult,
    P2PPool,
    Pool,
    PoolStates,
    ThreadPool,
)
from pparallel.errors import ClosedError, WorkerLostError
from pparallel.runtime import member
from pparallel.runtime.processes import helpers
from pparallel.testing.gate import Gate
from pparallel.testing.patience import PATIENCE, until, until_gone

each_kind = pytest.mark.parametrize("kind", ["BasePool", "ThreadPool", "Pool"])
#: one that rides on a native pool, and the engine
each_road = pytest.mark.parametrize("kind", ["BasePool", "Pool"])


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    (tmp_path / "gate").mkdir()
    with closing(Gate(tmp_path / "gate")) as gate:
        yield gate


def pids_below() -> set[int]:
    """Return the processes below this one, but for those that are kept to start others."""
    return {each.pid for each in psutil.Process().children(recursive=True)} - helpers()[0]


class TestOnEachPool:
    """What all pools have in common."""

    @pytest.mark.parametrize("kind", ["BasePool", "ThreadPool", "P2PPool"])
    def test_every_call(self, kind: str) -> None:
        told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with KINDS[kind](2) as pool:
            assert isinstance(pool, BasePool)
            assert pool.size() == 2
            assert pool.apply(tasks.power, (2,), {"exponent": 5}) == 32
            assert pool.apply(lambda one, other: one * other, (2, 3)) == 6
            call = pool.apply_async(tasks.power, (3, 2), None, told.put, told.put)
            assert type(call) is AsyncResult
            assert call.get(PATIENCE) == told.get() == 9
            assert call.ready()
            assert call.successful()
            assert pool.map(tasks.square, range(20)) == [each**2 for each in range(20)]
            assert pool.map(tasks.square, (each for each in range(7)), 3) == [
                0,
                1,
                4,
                9,
                16,
                25,
                36,
            ]
            many = pool.map_async(tasks.square, [1, 2, 3], 2, told.put, told.put)
            assert type(many) is MapResult
            assert isinstance(many, AsyncResult)
            assert many.get() == told.get() == [1, 4, 9]
            assert pool.starmap(tasks.power, [(2, 3), (3, 2)]) == [8, 9]
            assert pool.starmap_async(tasks.power, iter([(2, 3)]), callback=told.put).get() == [8]
            assert told.get() == [8]
            results = pool.imap(tasks.square, range(20))
            assert type(results) is IMapIterator
            assert list(results) == [each**2 for each in range(20)]
            unordered = pool.imap_unordered(tasks.square, range(20))
            assert type(unordered) is IMapUnorderedIterator
            assert isinstance(unordered, IMapIterator)
            assert sorted(unordered) == [each**2 for each in range(20)]
            assert pool.imap(tasks.square, range(7), 3) == [0, 1, 4, 9, 16, 25, 36]
            assert sorted(pool.imap_unordered(tasks.square, range(3), 2)) == [0, 1, 4]
            assert pool.map(tasks.square, []) == list(pool.imap(tasks.square, [])) == []
            assert pool.map_async(tasks.square, [], callback=told.put).get() == told.get() == []

    @each_kind
    def test_failures(self, kind: str) -> None:
        told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with KINDS[kind](2) as pool:
            with pytest.raises(ZeroDivisionError):
                pool.apply(tasks.invert, (0,))
            failed = pool.apply_async(tasks.invert, (0,), error_callback=told.put)
            with pytest.raises(ZeroDivisionError) as caught:
                failed.get()
            assert told.get() is caught.value
            assert not failed.successful()
            with pytest.raises(ZeroDivisionError):
                pool.map_async(tasks.invert, [1, 0, 2], error_callback=told.put).get()
            assert isinstance(told.get(), ZeroDivisionError)
            results = pool.imap(tasks.invert, [1, 0, 2])
            assert isinstance(results, IMapIterator)
            assert results.next(PATIENCE) == 1
            with pytest.raises(ZeroDivisionError):
                results.next()
            assert results.next() == 0.5
            with pytest.raises(StopIteration):
                results.next()
            with pytest.raises(SystemExit):
                pool.apply(sys.exit, (3,))
            for chunksize in (1, 2):
                with pytest.raises(LookupError, match="no more numbers"):
                    pool.imap(tasks.square, tasks.numbers_until(3), chunksize)
            with pytest.raises(LookupError, match="no more numbers"):
                pool.map_async(tasks.square, tasks.numbers_until(3))
            with pytest.raises(TypeError, match="3 is not callable"):
                pool.apply(3)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="chunksize must be at least 1, not 0"):
                pool.imap(tasks.square, [1], 0)
            assert pool.map(tasks.square, [2]) == [4]

    @pytest.mark.parametrize("kind", ["BasePool", "P2PPool"])
    def test_close_finishes_what_was_taken(self, kind: str, gate: Gate) -> None:
        pool = KINDS[kind](1)
        with pytest.raises(ValueError, match="close or terminate it before join"):
            pool.join()
        call = pool.apply_async(gate.pass_through, ("late",))
        results = pool.imap(tasks.square, range(50))
        gate.arrived()
        pool.close()
        for refused in (pool.apply_async, pool.map, pool.imap):
            with pytest.raises(ValueError, match="is closed"):
                refused(tasks.square, (1,))
        gate.open()
        pool.join()
        assert call.get() == "late"
        assert list(results) == [each**2 for each in range(50)]  # nobody asked for any before
        pool.join()
        pool.close()
        pool.terminate()

    @each_kind
    def test_terminate_wakes_those_who_wait(self, kind: str, gate: Gate) -> None:
        before = pids_below()
        pool = KINDS[kind](1)
        calls = [pool.apply_async(gate.pass_through, (1,)), pool.map_async(tasks.square, range(9))]
        results: Any = pool.imap(tasks.square, range(9))
        gate.arrived()
        workers = pids_below() - before
        pool.terminate()
        for call in calls:
            with pytest.raises(ClosedError, match="terminated"):
                call.get(PATIENCE)
        with pytest.raises(ClosedError):
            next(results)
        with pytest.raises(ValueError, match="terminated"):
            pool.apply(tasks.square, (1,))
        gate.open()
        pool.join()
        until(lambda: not workers & pids_below(), "workers are there still")

    @pytest.mark.parametrize("kind", ["BasePool", "ThreadPool"])
    def test_workers_are_replaced_after_so_many_tasks(self, kind: str) -> None:
        with KINDS[kind](1, maxtasksperchild=2) as pool:
            workers = [pool.apply(tasks.worker) for _ in range(6)]
            assert len({*workers}) == 3
            assert [workers.count(each) for each in workers] == [2] * 6
        for wrong in (0, 1.5):
            with pytest.raises(ValueError, match="replaced after 1 task or more"):
                KINDS[kind](1, maxtasksperchild=wrong)

    @pytest.mark.parametrize("kind", ["BasePool", "ThreadPool"])
    def test_the_initializer_runs_first(self, kind: str) -> None:
        with KINDS[kind](1, tasks.greet, ("hello",)) as pool:
            assert pool.apply(tasks.greeting) == "hello"


def test_lambdas_and_local_functions() -> None:
    offset = 3

    def add(number: int) -> int:
        return number + offset

    with Pool(1, tasks.greet, ("hello",), is_recursive=True) as pool:
        assert pool.apply(tasks.greeting) == "hello"
        assert pool.map(add, range(3)) == [3, 4, 5]
        assert pool.apply(lambda a, b: a * b + offset, (2, 3)) == 9
    assert member.current() is None  # of the calling thread nothing is changed


def test_time_outs(gate: Gate) -> None:
    with BasePool(1) as pool:
        call = pool.apply_async(gate.pass_through, (1,))
        results = pool.imap(tasks.square, [5])
        assert isinstance(results, IMapIterator)
        gate.arrived()
        call.wait(0)
        assert not call.ready()
        with pytest.raises(ValueError, match="not ready"):
            call.successful()
        for late in (call.get, results.next):
            with pytest.raises(multiprocessing.TimeoutError):
                late(0.01)
        gate.open()
        assert (call.get(), results.next()) == (1, 25)


@each_road
def test_a_callback_may_terminate(kind: str) -> None:
    pool = KINDS[kind](1)
    done = threading.Event()

    def end(_: object) -> None:
        pool.terminate()
        done.set()

    pool.apply_async(tasks.invert, (0,), error_callback=end)
    assert done.wait(PATIENCE)
    pool.join()


def test_a_callback_may_call() -> None:
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with BasePool(1) as pool:
        pool.apply_async(
            tasks.square,
            (2,),
            callback=lambda x: pool.apply_async(tasks.square, (x,), None, told.put),
        )
        assert told.get(timeout=PATIENCE) == 16


@each_road
def test_a_collected_pool_ends_its_workers(kind: str) -> None:
    pool = KINDS[kind](1)
    pids = {*pool.map(_pid, range(3), 1)}
    assert pids
    gone = weakref.ref(pool)
    del pool
    until(lambda: gc.collect() >= 0 and gone() is None, "the pool was not collected")
    until_gone(*pids)


def _pid(_: object) -> int:
    return tasks.worker()[0]


def test_results_keep_their_pool() -> None:
    assert list(Pool(1).imap(tasks.square, [1, 2])) == [1, 4]
    assert BasePool(1).apply_async(tasks.square, (3,)).get(PATIENCE) == 9


@pytest.mark.parametrize("kind", ["BasePool", "ThreadPool"])
def test_an_initializer_that_raises_fails_the_tasks(kind: str) -> None:
    options = {"maxtasksperchild": 1} if kind == "ThreadPool" else {}  # the engine too
    with KINDS[kind](1, tasks.refuse, ("not today",), **options) as pool:
        first = pool.map_async(tasks.square, range(3))
        with pytest.raises(LookupError, match="not today"):
            first.get(PATIENCE)
        with pytest.raises(LookupError, match="not today"):
            pool.apply(tasks.square, (2,))


def test_what_a_pool_refuses() -> None:
    for kind in KINDS.values():
        with pytest.raises(ValueError, match="processes must be 1 or more"):
            kind(0)
        with pytest.raises(TypeError, match="'greet' is not callable"):
            kind(1, "greet")
    for pools in (Pool, P2PPool, ThreadPool):
        for method in (None, "disk"):
            with pytest.raises(RuntimeError, match="Invalid share method"):
                pools(1, is_copy_tensor=False, share_method=method)


@pytest.mark.parametrize("kind", ["ThreadPool", "CtxPool"])
def test_a_pool_cannot_be_pickled(kind: str) -> None:
    with KINDS[kind](1) as pool:
        for dumps in (dill.dumps, pickle.dumps):
            with pytest.raises(NotImplementedError, match="cannot be passed between processes"):
                dumps(pool)
        assert repr(pool) == f"{kind}(processes=1)"


def test_states() -> None:
    assert [(each.name, each.value) for each in PoolStates] == [
        ("RUN", 0),
        ("CLOSE", 1),
        ("TERMINATE", 2),
    ]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_contexts_say_how_workers_start(context: str) -> None:
    with BasePool(1, context=multiprocessing.get_context(context)) as pool:
        assert pool.apply(tasks.square, (3,)) == 9


class TestAtLength:
    """What takes seconds."""

    def test_tensors_by_reference(self) -> None:
        import torch

        engine: Any = tasks.overriding(Pool, "maintain_pool")
        for kind in (Pool, engine):
            with kind(1, is_copy_tensor=False, share_method="cpu") as pool:
                tensor = torch.zeros(1000)
                pool.apply(tasks.fill, (tensor, 2.0))
                assert float(tensor.sum()) == 2000
                assert pool.map(tasks.sum_of, [torch.ones(10) * each for each in range(5)]) == [
                    0.0,
                    10.0,
                    20.0,
                    30.0,
                    40.0,
                ]

    def test_large_arguments_and_results_through_the_engine(self) -> None:
        import torch

        with BasePool(1) as pool:
            source = torch.arange(300_000.0)
            [doubled] = pool.map(torch.neg, [source])
            assert torch.equal(doubled, -source)
            doubled.zero_()
            assert float(source[-1]) == 299_999

    def test_many_tasks_more_than_a_queue_holds(self) -> None:
        with BasePool(2) as pool:
            assert list(pool.imap(abs, range(3000))) == list(range(3000))


SCRIPT = """
from pparallel.compat.machin.pool import BasePool, Pool, ThreadPool

print("once")


class Answer:
    def __init__(self, value):
        self.value = value


def job(number):
    return Answer(number + 1)


pools = [BasePool(1, maxtasksperchild=1), Pool(1), ThreadPool(1)]
for pool in pools:
    answers = [pool.apply(job, (each,)) for each in range(2)]
    print([each.value for each in answers], type(answers[0]) is Answer)
"""


def test_a_script_without_a_main_guard_that_leaves_its_pools_open(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "error", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("once\n" + 3 * "[1, 2] True\n", "")


def test_threads_mix_calls() -> None:
    found: list[list[int]] = []
    with BasePool(2) as pool:
        threads = [
            threading.Thread(target=lambda: found.append(pool.map(tasks.square, range(50), 1)))
            for _ in range(4)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert found == [[each**2 for each in range(50)]] * 4


def test_the_results_alone() -> None:
    """A program may make them itself, and ``set`` them as the seed's pools do."""
    cache: dict[int, Any] = {}
    told: list[Any] = []
    call = AsyncResult(1, cache, told.append, None)
    assert cache == {1: call}
    call.set(0, (True, "value"))
    assert (call.get(), told, cache) == ("value", ["value"], {})
    many = MapResult(2, cache, 2, 3, told.append, None)
    many.set(1, (True, ["c"]))
    assert not many.ready()
    many.set(0, (True, ["a", "b"]))
    assert (many.get(), told[1:], cache) == (["a", "b", "c"], [["a", "b", "c"]], {})
    failed = MapResult(3, cache, 1, 2, None, told.append)
    failed.set(1, (False, WorkerLostError(1, None)))
    assert isinstance(told[-1], WorkerLostError)
    assert MapResult(4, cache, 0, 0, None, None).get() == []
    ordered, unordered = IMapIterator(5, cache, 2), IMapUnorderedIterator(6, cache, 2)
    for each in (ordered, unordered):
        each.set(1, (True, "second"))
        each.set(0, (True, "first"))
    assert (list(ordered), list(unordered), cache) == (
        ["first", "second"],
        ["second", "first"],
        {},
    )
    assert list(IMapIterator(7, cache, 0)) == []


def test_threads_share_what_they_are_given() -> None:
    lock, values = threading.Lock(), [1]
    for pool in (ThreadPool(1), ThreadPool(1, maxtasksperchild=5)):
        with pool:
            assert pool.apply(lambda one, other: (one, other), (lock, values))[1] is values
