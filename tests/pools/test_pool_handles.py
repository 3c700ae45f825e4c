"""What handles and streams are to the rest of Python: futures, awaitables, iterators."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import warnings
import weakref
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    CancelledError,
    Future,
    as_completed,
    wait,
)
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import pytest
from held_pools import HeldPool, double, invert, worker_threads
from held_pools import gate as gate
from held_pools import pool as pool
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError
from pparallel.interfaces.pool import Pool
from pparallel.interfaces.pool.results import PoolResult, Publishing
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel_local import ThreadPoolConfig

# -- futures --------------------------------------------------------------------------------------


def test_a_handle_is_all_that_a_future_is(pool: Pool) -> None:
    """PoolResult has the attributes of Future itself: none may be missing in this Python."""
    made: PoolResult[Any] = PoolResult(pool.attend, Publishing())
    with made._condition:  # as whoever waits for several futures asks for it first
        pass
    for name, value in vars(Future()).items():
        assert hasattr(made, name), f"Future has an attribute {name}"
        if name == "_condition":
            assert isinstance(made._condition, type(value))
        else:
            assert getattr(made, name) == value or not getattr(made, name)


@pytest.mark.parametrize("when", [ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION])
def test_wait(pool: Pool, gate: threading.Event, when: str) -> None:
    blocked: list[Future[Any]] = [pool.submit(gate.wait, PATIENCE) for _ in range(2)]
    done, left = wait(blocked, timeout=0.01, return_when=when)
    assert (done, left) == (set(), set(blocked))
    failing = pool.submit(invert, 0)
    threading.Timer(0.01, gate.set).start()
    done, left = wait([*blocked, failing], PATIENCE, return_when=when)
    if when == FIRST_COMPLETED:
        assert done & set(blocked)
    else:
        assert failing in done
    assert wait([*blocked, failing], PATIENCE).not_done == set()


def test_as_completed(pool: Pool, gate: threading.Event) -> None:
    slow: Future[Any] = pool.submit(gate.wait, PATIENCE)
    quick: list[Future[Any]] = [pool.submit(double, each) for each in range(300)]
    with pytest.raises(FutureTimeoutError):
        list(as_completed([slow], timeout=0.01))
    seen = as_completed([slow, *quick], PATIENCE)
    assert sorted(each.result() for each in itertools.islice(seen, 300)) == list(range(0, 600, 2))
    gate.set()
    assert next(seen) is slow
    assert list(seen) == []


def test_with_futures_of_others(pool: Pool) -> None:
    other: Future[int] = Future()
    own = pool.submit(double, 1)
    assert next(as_completed([other, own], PATIENCE)) is own
    other.set_result(3)
    assert wait([other, own], PATIENCE).done == {other, own}


def test_who_waits_for_a_cancelled_call_is_woken_at_once(pool: Pool, gate: threading.Event) -> None:
    for _ in range(2):
        pool.submit(gate.wait, PATIENCE)
    waiting = [pool.submit(double, each) for each in range(3)]
    timer = threading.Timer(0.01, lambda: [each.cancel() for each in waiting])
    timer.start()
    assert wait(waiting, PATIENCE).done == set(waiting)
    for each in waiting:
        assert each.cancelled()
        assert each.cancel()
        with pytest.raises(CancelledError):
            each.get()
    timer.join()


def test_waiting_in_get_while_cancelled(pool: Pool, gate: threading.Event) -> None:
    for _ in range(2):
        pool.submit(gate.wait, PATIENCE)
    waiting = pool.submit(double, 1)
    timer = threading.Timer(0.01, waiting.cancel)
    timer.start()
    with pytest.raises(CancelledError):
        waiting.get(PATIENCE)
    timer.join()


def test_done_callbacks(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: object) -> None:
        message = "refused"
        raise LookupError(message)

    seen: list[object] = []
    handle = pool.submit(double, 1)
    handle.add_done_callback(refuse)
    handle.add_done_callback(seen.append)
    assert handle.result() == 2
    until(lambda: seen == [handle], "the callback was not called")
    handle.add_done_callback(seen.append)
    assert seen == [handle, handle]
    assert len(caplog.records) == 1
    assert "refused" in caplog.text


def test_a_callback_hears_first_and_once() -> None:
    """Whatever comes while the callback runs, the outcome stays what it was told."""
    pool, seen = HeldPool(), []

    def callback(value: int) -> None:
        seen.append(value)
        assert not handle.ready()
        assert not handle.cancel()
        sink.abort(ClosedError("the pool"))
        sink.done(0, (5,))

    handle = pool.apply_async(double, (2,), callback=callback)
    ((_, sink),) = pool.taken
    sink.done(0, (4,))
    assert (handle.get(), seen) == (4, [4])


def test_many_wait_for_one_and_one_for_many(pool: Pool, gate: threading.Event) -> None:
    shared = pool.submit(gate.wait, PATIENCE)
    results: list[list[int]] = []

    def use(number: int) -> None:
        if number == 0:
            gate.set()
        assert shared.get(PATIENCE) is True
        own = [pool.submit(double, each) for each in range(200)]
        results.append([each.get(PATIENCE) for each in own])

    in_threads(8, use)
    assert results == [list(range(0, 400, 2))] * 8


def test_a_pool_that_returns_early_from_attend() -> None:
    """attend may come back before the result is there: the handle asks again."""

    class Impatient(HeldPool):
        @override
        def attend(self, ready: Any, wait: Any, timeout: float | None) -> None:
            asked.append(timeout)
            if len(asked) == 3:
                self.taken[0][1].done(0, (7,))

    for limit in (None, PATIENCE):
        asked: list[float | None] = []
        assert Impatient().submit(double, 1).result(limit) == 7
        assert len(asked) == 3


def test_the_loop_of_asyncio(pool: Pool, gate: threading.Event) -> None:
    async def run() -> list[Any]:
        loop = asyncio.get_running_loop()
        executor = pool.as_executor()
        calls = [loop.run_in_executor(executor, double, each) for each in range(50)]
        assert await asyncio.gather(*calls) == list(range(0, 100, 2))
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(executor, invert, 0)
        waiting = [pool.submit(gate.wait, PATIENCE) for _ in range(2)]
        late = asyncio.wrap_future(pool.submit(double, 1))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(late, 0.01)
        assert late.cancelled()
        gate.set()
        return [await each for each in waiting]

    assert asyncio.run(run()) == [True, True]


def test_map_of_the_executor(pool: Pool, gate: threading.Event) -> None:
    executor = pool.as_executor()
    assert list(executor.map(pow, range(20), itertools.repeat(2))) == [n**2 for n in range(20)]
    with pytest.raises(FutureTimeoutError):
        list(executor.map(gate.wait, [PATIENCE], timeout=0.01))
    gate.set()
    executor.shutdown()


def test_an_executor_in_a_task_lends_the_slot_of_its_task() -> None:
    def outer(pool: Pool) -> int:
        with pool.as_executor() as executor:
            inner = executor.submit(double, 4)
        return inner.result()

    with pparallel.build(ThreadPoolConfig(size=1)) as pool:
        assert pool.submit(outer, pool).result(PATIENCE) == 8


# -- what is kept ---------------------------------------------------------------------------------


class Large:
    pass


def test_an_error_is_no_cycle(pool: Pool) -> None:
    """Whoever drops a failed call has dropped all of it, without the garbage collector."""

    def fail(large: Large) -> None:
        message = "too large"
        raise LookupError(message)

    def use(large: Large) -> None:
        with pytest.raises(LookupError):
            pool.apply(fail, (large,))
        with pytest.raises(LookupError):
            pool.submit(fail, large).result()
        stream = pool.imap(fail, [large])
        with pytest.raises(LookupError):
            next(stream)

    gc.disable()
    try:
        large = Large()
        gone = weakref.ref(large)
        use(large)
        del large
        until(lambda: gone() is None, "the argument is kept")
    finally:
        gc.enable()


def test_an_error_of_a_task_has_no_other_context(pool: Pool) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        pool.apply(invert, (0,))
    assert caught.value.__context__ is None
    with pytest.raises(ZeroDivisionError) as caught:
        next(pool.imap(invert, [0]))
    assert caught.value.__context__ is None


def test_a_pool_that_nobody_closed() -> None:
    before = set(threading.enumerate())

    def use() -> None:
        pool = pparallel.build(ThreadPoolConfig(size=2))
        pool.open()
        assert pool.map(double, [1]) == [2]
        stream = pool.imap(double, range(10**6))
        assert next(stream) == 0

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
        until(lambda: bool(gc.collect()) or bool(caught), "the pool was kept")
    (warning,) = [each for each in caught if each.category is ResourceWarning]
    assert str(warning.message) == "ThreadPool(size=2) was not closed"
    until(lambda: set(threading.enumerate()) <= before, "the threads of a lost pool stay")


def test_what_was_handed_over_is_done_though_nobody_holds_the_pool() -> None:
    done = threading.Event()

    def use() -> None:
        pool = pparallel.build(ThreadPoolConfig(size=1))
        pool.open()
        pool.submit(done.wait, 0.01)
        pool.submit(done.set)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        use()
        gc.collect()
        assert done.wait(PATIENCE)
        until(lambda: not worker_threads(), "the threads of a lost pool stay")
