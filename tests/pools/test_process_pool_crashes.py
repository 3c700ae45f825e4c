"""The crash grid, where nothing is left behind either."""

from __future__ import annotations

import gc
import os
import signal
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
from descriptors import few_descriptors
from process_backends import pool_of

import pparallel
from pparallel.errors import SerializationError, WorkerLostError
from pparallel.testing.deaths import DEATHS, FAILURES, WhenCollected, drop
from pparallel.testing.patience import until
from pparallel.testing.pool.tasks import note_and_call, noted


@pytest.fixture
def pool() -> Iterator[pparallel.Pool]:
    """One worker: it is certain to be replaced when it dies."""
    with pool_of("process", size=1) as pool:
        yield pool


@pytest.mark.parametrize("place", PLACES)
def test_in_the_worker(pool: pparallel.Pool, place: str) -> None:
    check_failures(pool, place, PLACES[place])
    check_deaths(pool, PLACES[place])


def test_in_the_caller(pool: pparallel.Pool) -> None:
    for place, make in IN_THE_CALLER.items():
        check_failures(pool, place, make)


@pytest.mark.parametrize(("backend", "method"), [("process", "fork"), ("p2p", "spawn")])
def test_workers_that_are_started_otherwise(backend: str, method: Any) -> None:
    with pool_of(backend, size=1, start_method=method) as pool:
        check_failures(pool, "running", PLACES["running"])
        check_deaths(pool, PLACES["running"], ("exit", "SIGKILL"))


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


def test_a_failure_in_the_caller_disturbs_no_other_call(pool: pparallel.Pool) -> None:
    for make in IN_THE_CALLER.values():
        for call, args, _ in FAILURES.values():
            stream = pool.imap(abs, range(300))
            handles = [pool.submit(abs, each) for each in range(50)]
            assert isinstance(outcome(pool, *make(call, args)), SerializationError)
            assert [each.result(LIMIT) for each in handles] == list(range(50))
            assert list(stream) == list(range(300))


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


def test_pool_without_descriptors_starts_workers_once_it_has_some(pool: pparallel.Pool) -> None:
    pid = pool.apply(os.getpid)
    with few_descriptors():
        os.kill(pid, signal.SIGKILL)
        # To ask psutil would take a descriptor.
        until(lambda: not Path(f"/proc/{pid}").exists(), "the worker lives")
        result = pool.apply_async(os.getpid)
        result.wait(0.3)
    try:
        started = result.get(LIMIT)
    except WorkerLostError:  # it was given to the worker that had died
        started = pool.apply_async(os.getpid).get(LIMIT)
    assert started != pid


def test_the_error_of_a_death_names_the_exit_code_or_the_signal(pool: pparallel.Pool) -> None:
    with pytest.raises(WorkerLostError, match="died with exit code 3"):
        pool.apply(os._exit, (3,))
    with pytest.raises(WorkerLostError, match=r"died by .*SIGKILL"):
        pool.apply(signal.raise_signal, (signal.SIGKILL,))
