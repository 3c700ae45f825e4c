"""The crash grid on both backends and all methods, where nothing is left behind either."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_grid import (
    IN_THE_CALLER,
    LIMIT,
    PLACES,
    check_deaths,
    check_failures,
    check_use,
    outcome,
)
from process_backends import BACKENDS, pool_of

import pparallel
from pparallel.errors import SerializationError, WorkerLostError
from pparallel.testing.deaths import DEATHS, FAILURES, WhenCollected, drop
from pparallel.testing.pool.tasks import note_and_call, noted


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
