"""The future of calls and of pools' tasks."""

from __future__ import annotations

import gc
import math
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import (
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    CancelledError,
    Future,
    InvalidStateError,
    wait,
)
from contextlib import nullcontext
from typing import Any

import pytest
from typing_extensions import override

from pparallel.interfaces.pool.results import PoolResult, Publishing
from pparallel.runtime.future import LeanFuture, fail, settle, wait_all
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads


@pytest.fixture(params=[False, True], ids=["no wait", "a wait"])
def future(request: pytest.FixtureRequest) -> LeanFuture[int]:
    """Return one for which nobody has waited, or somebody has, for which it has a lock."""
    made: LeanFuture[int] = LeanFuture()
    if request.param:
        assert not wait([made], 0).done
    return made


def test_it_has_the_attributes_of_a_future() -> None:
    lean: LeanFuture[None] = LeanFuture()
    assert all(hasattr(lean, each) for each in vars(Future()))
    assert lean._condition is lean._condition  # made once


def test_it_completes_once_whether_somebody_waits_or_not(future: LeanFuture[int]) -> None:
    future.set_result(3)
    settle(future, 4)
    fail(future, LookupError())
    assert not future.cancel()
    with pytest.raises(InvalidStateError):
        future.set_result(4)
    with pytest.raises(InvalidStateError):
        future.set_exception(LookupError())
    assert future.done()
    assert not future.cancelled()
    assert future.result() == 3
    assert future.exception() is None


def test_a_future_is_settled_once() -> None:
    future: Future[int] = Future()
    settle(future, 1)
    settle(future, 2)
    fail(future, ValueError())
    assert future.result() == 1


def test_callbacks_run_once_before_and_after(future: LeanFuture[int]) -> None:
    seen: list[str] = []
    future.add_done_callback(lambda _: seen.append("before"))
    assert not wait([future], 0).done
    future.add_done_callback(lambda _: seen.append("behind a wait"))
    future.set_result(1)
    future.add_done_callback(lambda _: seen.append("after"))
    assert seen == ["before", "behind a wait", "after"]


def test_one_that_was_cancelled_takes_no_result(future: LeanFuture[int]) -> None:
    seen: list[Any] = []
    future.add_done_callback(seen.append)
    assert future.cancel()
    assert future.cancel()
    assert future.done()
    assert future.cancelled()
    assert wait([future], 0).done == {future}
    with pytest.raises(InvalidStateError):
        future.set_result(1)
    settle(future, 1)
    fail(future, LookupError())
    for ask in (future.result, future.exception):
        with pytest.raises(CancelledError):
            ask()
    assert seen == [future]


@pytest.mark.parametrize(
    ("end", "when"),
    [
        (lambda future: future.set_result(1), FIRST_COMPLETED),
        (lambda future: future.set_exception(LookupError()), FIRST_EXCEPTION),
        (lambda future: future.cancel(), FIRST_COMPLETED),
    ],
    ids=["result", "error", "cancelled"],
)
def test_whoever_waits_in_concurrent_futures_is_woken(
    end: Callable[[Future[int]], object], when: str
) -> None:
    future: LeanFuture[int] = LeanFuture()
    other: LeanFuture[int] = LeanFuture()
    waits = threading.Event()

    def end_later() -> None:
        waits.wait(PATIENCE)
        end(future)

    ending = threading.Thread(target=end_later)
    ending.start()
    with future._condition:  # as wait() does; whoever ends it comes after that
        waits.set()
        assert not future.done()
    assert wait([future, other], PATIENCE, return_when=when) == ({future}, {other})
    ending.join()


def test_each_future_has_a_lock_of_its_own() -> None:
    """Else two threads that wait for the same futures, or for others between, stop for ever."""
    futures: list[Future[Any]] = [LeanFuture(), PoolResult(print, Publishing()), LeanFuture()]

    def take_others(held: Future[Any]) -> None:
        for each in futures:
            if each is not held:
                assert each._condition.acquire(timeout=PATIENCE)
                each._condition.release()

    for each in futures:
        with each._condition:
            in_threads(1, lambda _, held=each: take_others(held))  # type: ignore[misc]


def test_whoever_waits_is_woken_before_callbacks_that_take_long() -> None:
    future: LeanFuture[int] = LeanFuture()
    has_result = threading.Event()
    future.add_done_callback(lambda _: has_result.wait(PATIENCE))

    def act(which: int) -> bool:
        if which:
            until(lambda: len(future._done_callbacks) == 2, "the other thread does not wait")
            future.set_result(1)
            return has_result.is_set()
        try:
            return future.result(PATIENCE) == 1
        finally:
            has_result.set()

    assert in_threads(2, act) == [True, True]


def test_what_is_raised_keeps_no_future_alive() -> None:
    future: LeanFuture[int] = LeanFuture()
    future.set_exception(LookupError())
    gone = weakref.ref(future)
    gc.disable()
    try:
        with pytest.raises(LookupError):
            future.result()
        del future
        assert gone() is None
    finally:
        gc.enable()


def test_a_forked_child_ends_futures_whoever_held_the_lock() -> None:
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with LeanFuture._lock:
            held.set()
            forked.wait(PATIENCE)

    holding = threading.Thread(target=hold)
    holding.start()
    assert held.wait(PATIENCE)
    child = os.fork()
    if not child:
        future: LeanFuture[int] = LeanFuture()
        future.set_result(3)
        os._exit(future.result())
    forked.set()
    holding.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_a_time_out_is_for_all_futures_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = 100.0, list[float | None]()

    class Slow(LeanFuture[int]):
        """One that ends two seconds after it is asked."""

        @override
        def exception(self, timeout: float | None = None) -> BaseException | None:
            nonlocal now
            waits.append(timeout)
            now += 2.0
            settle(self, 3)
            return None

    monkeypatch.setattr("pparallel.runtime.future.monotonic", lambda: now)
    assert wait_all([Slow(), Slow(), Slow()], 5.0) == [3, 3, 3]
    assert waits == [5.0, 3.0, 1.0]


def test_a_wait_in_vain_leaves_nothing_behind() -> None:
    future: LeanFuture[int] = LeanFuture()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            future.result(0.001)
    seen: list[int] = []
    future.add_done_callback(lambda done: seen.append(done.result()))
    future.set_result(1)
    assert seen == [1]
    assert future.result(math.inf) == 1


@pytest.mark.parametrize("failure", [LookupError, SystemExit, KeyboardInterrupt])
def test_callbacks_behind_one_that_raises_are_called(
    future: LeanFuture[int], failure: type[BaseException]
) -> None:
    seen: list[int] = []

    def fail(_: object) -> None:
        raise failure

    future.add_done_callback(fail)
    future.add_done_callback(lambda done: seen.append(done.result()))
    with pytest.raises(KeyboardInterrupt) if failure is KeyboardInterrupt else nullcontext():
        future.set_result(1)
    assert seen == [1]
