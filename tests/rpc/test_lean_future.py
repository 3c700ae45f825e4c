"""Futures that make their condition when somebody waits."""

from __future__ import annotations

import math
import threading
from concurrent.futures import Future, InvalidStateError, as_completed, wait
from contextlib import nullcontext
from typing import Any

import pytest

from pparallel.runtime.lean_future import LeanFuture
from pparallel.testing.patience import PATIENCE


def test_it_has_the_attributes_of_a_future() -> None:
    lean: LeanFuture[None] = LeanFuture()
    assert all(hasattr(lean, each) for each in vars(Future()))
    assert lean._condition is lean._condition  # made once


def test_it_completes_once_whether_somebody_waits_or_not() -> None:
    for somebody_waits in (False, True):
        future: LeanFuture[int] = LeanFuture()
        if somebody_waits:
            assert not wait([future], 0).done
        future.set_result(3)
        assert future.done()
        assert future.result() == 3
        assert future.exception() is None
        with pytest.raises(InvalidStateError):
            future.set_result(4)
        with pytest.raises(InvalidStateError):
            future.set_exception(LookupError())


def test_what_it_fails_with_is_raised() -> None:
    future: LeanFuture[int] = LeanFuture()
    future.set_exception(LookupError("gone"))
    assert isinstance(future.exception(), LookupError)
    with pytest.raises(LookupError, match="gone"):
        future.result()


def test_callbacks_run_once_before_and_after() -> None:
    future: LeanFuture[int] = LeanFuture()
    seen: list[Any] = []
    future.add_done_callback(lambda done: seen.append(("before", done.result())))
    future.set_result(1)
    future.add_done_callback(lambda done: seen.append(("after", done.result())))
    assert seen == [("before", 1), ("after", 1)]


def test_one_that_was_cancelled_takes_no_result() -> None:
    future: LeanFuture[int] = LeanFuture()
    assert future.cancel()
    assert future.done()
    with pytest.raises(InvalidStateError):
        future.set_result(1)


def test_those_who_wait_see_each_completion_once() -> None:
    for _ in range(20):
        futures: list[LeanFuture[int]] = [LeanFuture() for _ in range(200)]

        def complete(futures: list[LeanFuture[int]] = futures) -> None:
            for n, each in enumerate(futures):
                each.set_result(n)

        completing = threading.Thread(target=complete)
        completing.start()
        assert wait(futures, PATIENCE).not_done == set()
        completing.join()
        assert sorted(each.result() for each in as_completed(futures)) == list(range(200))


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
def test_callbacks_behind_one_that_raises_are_called(failure: type[BaseException]) -> None:
    future: LeanFuture[int] = LeanFuture()
    seen: list[int] = []

    def fail(_: object) -> None:
        raise failure

    future.add_done_callback(fail)
    future.add_done_callback(lambda done: seen.append(done.result()))
    with pytest.raises(KeyboardInterrupt) if failure is KeyboardInterrupt else nullcontext():
        future.set_result(1)
    assert seen == [1]
