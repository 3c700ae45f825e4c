"""Parallel and Parallelizable, on every pool that is built in."""

from __future__ import annotations

import gc
import pickle
import threading
import traceback
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from typing_extensions import override

import pparallel
from pparallel import Parallel, Parallelizable
from pparallel.errors import ClosedError, ConfigError, TaskTimeoutError, is_consequence
from pparallel.interfaces.pool import Pool
from pparallel.runtime import stopping
from pparallel.runtime.stopping import StopSignal
from pparallel.testing.patience import PATIENCE, until
from pparallel_local import ThreadPoolConfig


class Inverse(Parallelizable):
    """Notes where it runs; ``None`` waits at the gate."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.gate = threading.Event()

    @override
    def forward_backward(self, x: float | None) -> float:
        self.threads.append(threading.current_thread())
        if x is None:
            assert self.gate.wait(PATIENCE)
            return 0.0
        return 1 / x


@pytest.fixture
def net() -> Iterator[Inverse]:
    net = Inverse()
    yield net
    net.gate.set()


@pytest.mark.parametrize(
    "pool", [None, {"backend": "serial"}, {"backend": "thread", "size": 3}, ThreadPoolConfig()]
)
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_each_input_gives_one_result(net: Inverse, pool: Any, workers: int) -> None:
    inputs = [2**n for n in range(8)]
    for serial_init in (True, False):
        net.threads.clear()
        with Parallel(workers, net, serial_init, pool=pool) as parallel:
            for _ in range(3):
                for x in inputs:
                    parallel.put(x)
                assert sorted(parallel.get() for _ in inputs) == sorted(1 / x for x in inputs)
        assert len(net.threads) == 24


@pytest.mark.parametrize(
    ("workers", "serial_init", "here"), [(0, True, 5), (0, False, 5), (2, True, 2), (2, False, 0)]
)
def test_the_first_inputs_run_in_the_caller(
    net: Inverse, workers: int, serial_init: bool, here: int
) -> None:
    with Parallel(num_workers=workers, parallizable=net, serial_init=serial_init) as parallel:
        for x in (1, 2, 4, 5, 8):
            parallel.put(x=x)
        results = [parallel.get() for _ in range(5)]
    assert results == [1, 0.5, 0.25, 0.2, 0.125] or here < 4  # in the order in which they are ready
    mine = [each is threading.current_thread() for each in net.threads]
    assert mine == [True] * here + [False] * (5 - here)


def test_results_come_as_they_are_ready(net: Inverse) -> None:
    with Parallel(2, net, serial_init=False) as parallel:
        with pytest.raises(RuntimeError, match="there is nothing to get"):
            parallel.get()
        parallel.put(None)
        with pytest.raises(TaskTimeoutError, match=r"was not done within 0\.05 s"):
            parallel.get(timeout=0.05)
        parallel.put(2)
        assert parallel.get() == 0.5
        net.gate.set()
        assert parallel.get(timeout=PATIENCE) == 0  # it counts still
        with pytest.raises(RuntimeError, match="each result of what was put was got already"):
            parallel.get()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("serial_init", [True, False])
def test_an_exception_comes_out_of_get(net: Inverse, workers: int, serial_init: bool) -> None:
    with Parallel(workers, net, serial_init) as parallel:
        for x in (0, 0, 0, 4):
            parallel.put(x)
        outcomes: list[Any] = []
        for _ in range(4):
            try:
                outcomes.append(parallel.get())
            except ZeroDivisionError as error:
                outcomes.append("".join(traceback.format_exception(error)))
        outcomes.remove(0.25)
        assert ["forward_backward" in each for each in outcomes] == [True] * 3
        parallel.put(5)  # the workers live on
        assert parallel.get() == 0.2


class Raising(Parallelizable):
    @override
    def forward_backward(self, x: BaseException) -> None:
        raise x


def test_a_worker_that_exits_is_told() -> None:
    with Parallel(2, Raising(), serial_init=False) as parallel:
        for code in ("3", "4"):
            parallel.put(SystemExit(code))
            with pytest.raises(SystemExit, match=code):
                parallel.get()
    with Parallel(2, Parallelizable(), serial_init=False) as parallel:
        parallel.put(1)
        with pytest.raises(NotImplementedError):
            parallel.get()


# -- ends -------------------------------------------------------------------------------------


def test_close_runs_what_was_put(net: Inverse) -> None:
    parallel = Parallel(2, net, serial_init=False)
    net.gate.set()
    for _ in range(10):
        parallel.put(None)
    parallel.close()
    parallel.close()
    assert len(net.threads) == 10
    assert not any(thread.is_alive() for thread in net.threads)
    assert [parallel.get() for _ in range(10)] == [0] * 10
    with pytest.raises(ClosedError, match="the Parallel is closed"):
        parallel.put(1)
    with pytest.raises(RuntimeError, match="there is nothing to get"):
        parallel.get()


def test_an_exception_in_the_block_ends_what_waits(net: Inverse) -> None:
    parallel = Parallel(1, net, serial_init=False)

    def use() -> None:
        with parallel:
            for _ in range(3):
                parallel.put(None)
            until(lambda: bool(net.threads), "nothing has started")
            threading.Timer(0.05, net.gate.set).start()
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        use()
    for _ in range(3):
        with pytest.raises(ClosedError):
            parallel.get()
    assert len(net.threads) == 1


@pytest.mark.parametrize("busy", [False, True])
def test_workers_end_when_it_is_collected(net: Inverse, busy: bool) -> None:
    parallel = Parallel(3, net, serial_init=False)
    seen = weakref.ref(parallel)
    parallel.put(1)
    parallel.get()
    workers = {each for each in threading.enumerate() if "pool" in each.name}
    assert len(workers) == 3
    if busy:
        for _ in range(5):
            parallel.put(None)
    del parallel
    gc.collect()
    assert seen() is None
    net.gate.set()
    until(lambda: not any(each.is_alive() for each in workers), "the workers did not end")
    assert len(net.threads) == (6 if busy else 1)  # what was put has run


def test_a_given_pool_stays_open(net: Inverse) -> None:
    with pparallel.build(ThreadPoolConfig(size=2)) as pool:
        with Parallel(2, net, serial_init=False, pool=pool) as parallel:
            parallel.put(2)
            assert parallel.get() == 0.5
        with pytest.raises(ClosedError):
            parallel.put(2)
        del parallel
        gc.collect()
        assert pool.map(abs, [-1, 2]) == [1, 2]
        again = Parallel(1, net, serial_init=False, pool=pool)
        again.put(4)
        assert again.get() == 0.25


def test_a_given_pool_that_ends(net: Inverse) -> None:
    with pparallel.build(ThreadPoolConfig(size=1)) as pool:
        parallel = Parallel(1, net, serial_init=False, pool=pool)
        for _ in range(3):
            parallel.put(None)
        until(lambda: bool(net.threads), "nothing has started")
        pool.terminate()
        for _ in range(3):
            with pytest.raises(ClosedError):
                parallel.get()
        with pytest.raises(ClosedError):
            parallel.put(1)
        with pytest.raises(RuntimeError, match="nothing to get"):  # what was refused is not owed
            parallel.get()
        net.gate.set()


class Nested(Parallelizable):
    """Uses the pool that it runs on."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    @override
    def forward_backward(self, x: int) -> int:
        if x == 0:
            return 1
        inner = Parallel(1, self, serial_init=False, pool=self.pool)
        inner.put(x - 1)
        inner.put(x - 1)
        return int(inner.get() + inner.get())


def test_nested_use_of_one_pool() -> None:
    with pparallel.build(ThreadPoolConfig(size=1)) as pool:
        parallel = Parallel(1, Nested(pool), serial_init=False, pool=pool)
        parallel.put(4)
        assert parallel.get(timeout=PATIENCE) == 16


def test_a_rank_that_is_told_to_stop_wakes(net: Inverse) -> None:
    signal = StopSignal()

    def rank() -> None:
        with stopping.running_under(signal):
            parallel.put(None)
            parallel.get()

    with Parallel(1, net, serial_init=False) as parallel, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(rank)
        until(lambda: bool(net.threads), "nothing has started")
        signal.set(RuntimeError("elsewhere"))
        error = waiting.exception(PATIENCE)
        net.gate.set()
    assert isinstance(error, ClosedError)
    assert is_consequence(error)


# -- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pool", "size"),
    [
        (None, 3),
        ({"backend": "thread"}, 3),
        ({"backend": "thread", "size": 2}, 2),
        (ThreadPoolConfig(), 3),
        (ThreadPoolConfig(size=4), 4),
    ],
)
def test_the_number_of_workers(net: Inverse, pool: Any, size: int) -> None:
    with Parallel(3, net, serial_init=False, pool=pool) as parallel:
        for _ in range(6):
            parallel.put(None)
        until(lambda: len(net.threads) >= size, "too few have started")
        assert len(net.threads) == size
        net.gate.set()
        assert [parallel.get() for _ in range(6)] == [0] * 6


def test_worker_contexts_come_first() -> None:
    class WithContext(Parallelizable):
        @override
        def forward_backward(self, *args: Any) -> Any:
            return args

    config = {"backend": "thread", "worker_contexts": ("one",)}
    with Parallel(1, WithContext(), serial_init=False, pool=config) as parallel:
        parallel.put(5)
        assert parallel.get() == ("one", 5)


@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        ((-1, Inverse()), {}, ValueError, "num_workers must be 0 or more, not -1"),
        ((1, abs), {}, TypeError, "has no method forward_backward"),
        ((1, Inverse()), {"pool": {"backend": "thraed"}}, ConfigError, "Did you mean 'thread'"),
        ((1, Inverse()), {"pool": {"sise": 1}}, ConfigError, "sise"),
        ((0, Inverse()), {"pool": {"sise": 1}}, ConfigError, "sise"),
        ((1, Inverse()), {"pool": 5.5}, ConfigError, "a mapping of options, not 5.5"),
    ],
)
def test_what_is_refused(
    args: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Parallel(*args, **options)


def test_it_is_not_sent(net: Inverse) -> None:
    with pytest.raises(TypeError):
        pickle.dumps(Parallel(0, net))
