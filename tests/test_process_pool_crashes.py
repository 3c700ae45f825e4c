"""The crash grid of loky: every way to fail in every place, on both backends and all methods.

Each case ends in the right error within ten seconds (the benchmark asks for one), the pool goes on,
and nothing is left behind.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from process_backends import BACKENDS, pool_of

import pparallel
from pparallel.errors import RemoteError, SerializationError, WorkerLostError
from pparallel.testing.deaths import (
    DEATHS,
    FAILURES,
    ErrorWhenRebuilt,
    ErrorWhenSent,
    WhenCollected,
    WhenRebuilt,
    WhenSent,
    WhenStateIsSet,
    drop,
    throw,
)
from pparallel.testing.pool.tasks import note_and_call, noted

LIMIT = 10.0  #: seconds within which the caller has the error
Call = Callable[..., Any]
Args = tuple[Any, ...]
Place = Callable[[Call, Args], tuple[Call, Args]]

#: what a task is made of so that a call is made in that place
PLACES: dict[str, Place] = {
    "unpickling the argument": lambda call, args: (drop, (WhenRebuilt(call, args),)),
    "setting the state of the argument": lambda call, args: (drop, (WhenStateIsSet(call, args),)),
    "unpickling the function": lambda call, args: (partial(drop, WhenRebuilt(call, args)), ()),
    "running": lambda call, args: (call, args),
    "pickling the result": lambda call, args: (WhenSent, (call, args)),
    "pickling the exception": lambda call, args: (throw, (ErrorWhenSent, call, args)),
    "unpickling the exception": lambda call, args: (throw, (ErrorWhenRebuilt, call, args)),
}
#: the same, where it is the caller that makes the call
IN_THE_CALLER: dict[str, Place] = {
    "pickling the argument": lambda call, args: (drop, (WhenSent(call, args),)),
    "pickling the function": lambda call, args: (partial(drop, WhenSent(call, args)), ()),
    "unpickling the result": lambda call, args: (WhenRebuilt, (call, args)),
    "setting the state of the result": lambda call, args: (WhenStateIsSet, (call, args)),
}


@pytest.fixture(params=["forkserver", "spawn"])
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pool(backend: str, method: Any) -> Iterator[pparallel.Pool]:
    """One worker: it is certain to be replaced when it dies."""
    with pool_of(backend, size=1, start_method=method) as pool:
        yield pool


def outcome(pool: pparallel.Pool, call: Call, args: Args) -> BaseException | None:
    try:
        return pool.submit(call, *args).exception(LIMIT)
    except SerializationError as error:  # of what the caller could not pickle
        return error


def check_use(pool: pparallel.Pool) -> None:
    assert pool.map_async(abs, range(-5, 5)).get(LIMIT) == [5, 4, 3, 2, 1, 0, 1, 2, 3, 4]


def check_failures(pool: pparallel.Pool, place: str, make: Place) -> None:
    for failure, (call, args, raised) in FAILURES.items():
        expected: type[BaseException] = SerializationError
        if place == "running":
            expected = raised
        elif place.endswith("the exception"):
            expected = RemoteError
        pid = pool.apply(os.getpid)
        error = outcome(pool, *make(call, args))
        assert type(error) is expected, f"{failure}: {error!r}"
        check_use(pool)
        assert pool.apply(os.getpid) == pid, f"{failure}: the worker was lost"


def check_deaths(pool: pparallel.Pool, make: Place, names: tuple[str, ...] = ()) -> None:
    for name in names or DEATHS:
        death = DEATHS[name]
        pid = pool.apply(os.getpid)
        error = outcome(pool, *make(death.call, death.args))
        assert isinstance(error, WorkerLostError), f"{name}: {error!r}"
        assert (error.pid, error.exitcode) == (pid, death.exitcode), name
        check_use(pool)


@pytest.mark.costly
@pytest.mark.parametrize("place", PLACES)
def test_in_the_worker(
    pool: pparallel.Pool, place: str, method: str, scale: Callable[[int], int]
) -> None:
    check_failures(pool, place, PLACES[place])
    # each death costs an interpreter's start; the full scale has the full grid
    few = method == "spawn" and scale(10) < 10
    check_deaths(pool, PLACES[place], ("C exit", "SIGKILL") if few else ())


@pytest.mark.costly
@pytest.mark.parametrize("place", IN_THE_CALLER)
def test_in_the_caller(pool: pparallel.Pool, place: str) -> None:
    check_failures(pool, place, IN_THE_CALLER[place])


@pytest.mark.costly
@pytest.mark.parametrize("method", ["fork"], indirect=True)
@pytest.mark.parametrize("place", ["unpickling the argument", "running", "pickling the result"])
def test_workers_that_are_forked(pool: pparallel.Pool, place: str) -> None:
    check_failures(pool, place, PLACES[place])
    check_deaths(pool, PLACES[place], ("exit", "SIGKILL"))


def test_a_failure_in_a_garbage_collection(pool: pparallel.Pool, tmp_path: Path) -> None:
    pid, notes = pool.apply(os.getpid), tmp_path / "notes"
    for count, (failure, (call, args, _)) in enumerate(FAILURES.items(), 1):
        failing = WhenCollected(note_and_call, (notes, call, *args))
        assert outcome(pool, drop, (failing,)) is None, failure
        assert outcome(pool, gc.collect, ()) is None, failure
        assert noted(notes) == [str(pid)] * count, f"{failure}: it was not collected once"
        check_use(pool)
    assert pool.apply(os.getpid) == pid


def test_a_death_in_a_garbage_collection(pool: pparallel.Pool) -> None:
    for name in ("exit", "C exit", "segfault", "SIGKILL"):
        death = DEATHS[name]
        pid = pool.apply(os.getpid)
        errors = [outcome(pool, drop, (WhenCollected(death.call, death.args),))]
        errors.append(outcome(pool, gc.collect, ()))
        for error in errors:  # it may die between two tasks, and cost none
            if error is not None:
                assert isinstance(error, WorkerLostError), name
                assert (error.pid, error.exitcode) == (pid, death.exitcode), name
        check_use(pool)
        assert pool.apply(os.getpid) != pid, name


@pytest.mark.parametrize("method", ["forkserver"], indirect=True)
def test_a_failure_in_the_caller_disturbs_no_other_call(pool: pparallel.Pool) -> None:
    for make in IN_THE_CALLER.values():
        for call, args, _ in FAILURES.values():
            stream = pool.imap(abs, range(300))
            handles = [pool.submit(abs, each) for each in range(50)]
            assert isinstance(outcome(pool, *make(call, args)), SerializationError)
            assert [each.result(LIMIT) for each in handles] == list(range(50))
            assert list(stream) == list(range(300))


@pytest.mark.parametrize("method", ["forkserver"], indirect=True)
def test_a_death_is_told_to_each_kind_of_call(pool: pparallel.Pool) -> None:
    death = DEATHS["exit"]
    calls: list[Callable[[], object]] = [
        lambda: pool.apply(death.call, death.args),
        lambda: pool.map(death.call, death.args),
        lambda: pool.starmap(death.call, [death.args]),
        lambda: next(pool.imap(death.call, death.args)),
        lambda: next(pool.imap_unordered(death.call, death.args)),
        lambda: pool.submit(death.call, *death.args).result(LIMIT),
        lambda: pool.as_executor().submit(death.call, *death.args).result(LIMIT),
    ]
    for call in calls:
        with pytest.raises(WorkerLostError) as caught:
            call()
        assert caught.value.exitcode == death.exitcode
    check_use(pool)
