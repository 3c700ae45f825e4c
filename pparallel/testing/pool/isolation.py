"""Workers that die, and what becomes of the tasks of an isolated pool."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pparallel.errors import ClosedError, WorkerLostError
from pparallel.interfaces.pool import Pool, PoolResult, ResultStream
from pparallel.testing.deaths import DEATHS
from pparallel.testing.gate import Gate
from pparallel.testing.patience import PATIENCE, until, until_gone
from pparallel.testing.pool.base import Gates, Make, PoolTests
from pparallel.testing.pool.tasks import (
    die_on_some,
    double,
    note_and_call,
    note_and_wait,
    noted,
    own_pid,
    pass_and_call,
)
from pparallel.testing.suite import requires
from pparallel.testing.threads import in_threads

_KILLED = DEATHS["SIGKILL"]


class IsolationTests(PoolTests):
    """Tests of deaths: each fails its own task, is told of in full, and harms nothing else."""

    @requires("isolated")
    @pytest.mark.parametrize("how", DEATHS)
    def test_a_death_is_described(self, pool: Pool, notes: Path, how: str) -> None:
        death = DEATHS[how]
        for _ in range(2):
            error = _lost(pool.submit(note_and_call, notes, death.call, *death.args))
            assert error.exitcode == death.exitcode
            assert str(error.pid) == noted(notes)[-1]
            assert str(error.pid) in str(error)
        assert pool.map(double, range(10)) == list(range(0, 20, 2))
        assert len(noted(notes)) == 2

    @requires("isolated")
    def test_those_who_had_not_started_go_elsewhere(self, make: Make, notes: Path) -> None:
        with make(size=1) as pool:
            task = partial(die_on_some, notes, (50,))
            ends = ends_of(pool.imap(task, range(200)), 200)
            assert isinstance(ends[50], WorkerLostError)
            assert ends[51:] == list(range(51, 200))
            for at, end in enumerate(ends[:50]):  # what had ended lately may be lost with it
                assert end == at or isinstance(end, WorkerLostError)
        assert Counter(noted(notes)) == Counter(map(str, range(200)))

    @requires("isolated")
    def test_nothing_starts_twice(self, make: Make, notes: Path) -> None:
        deadly = range(7, 300, 40)
        with make(size=2) as pool:
            task = partial(die_on_some, notes, deadly)
            ends = ends_of(pool.imap(task, range(300)), 300)
            handles = [
                pool.submit(die_on_some, notes, (303, 306), each) for each in range(300, 310)
            ]
            ends += [end_of(each) for each in handles]
            for at, end in enumerate(ends):
                assert end == at or isinstance(end, WorkerLostError)
            assert all(isinstance(ends[at], WorkerLostError) for at in (*deadly, 303, 306))
            assert pool.map(double, range(10)) == list(range(0, 20, 2))
        assert Counter(noted(notes)) == Counter(map(str, range(310)))

    @requires("isolated", "parallel")
    def test_what_was_reported_stays(self, make: Make, gate: Gate) -> None:
        with make(size=1) as pool:
            before = [pool.submit(double, each) for each in range(20)]
            stream = pool.imap(double, range(20))
            mapped = pool.map_async(double, range(20))
            dying = pool.submit(pass_and_call, gate, _KILLED.call, *_KILLED.args)
            after = pool.map_async(double, range(20))
            gate.arrived()
            # whatever runs next, results are there soon
            assert [each.result(PATIENCE) for each in before] == list(range(0, 40, 2))
            assert mapped.get(PATIENCE) == list(range(0, 40, 2))
            gate.open()
            assert _lost(dying).exitcode == _KILLED.exitcode
            assert after.get(PATIENCE) == mapped.get(0) == list(stream)
            assert [each.result(0) for each in before] == list(range(0, 40, 2))

    @requires("isolated")
    def test_a_death_fails_a_map_at_once(self, make: Make, notes: Path) -> None:
        with make(size=1) as pool:
            task = partial(die_on_some, notes, (3,))
            assert _lost(pool.map_async(task, range(20))).exitcode == 3
            assert _lost(pool.starmap_async(task, [(each,) for each in range(20)])).exitcode == 3
            errors: list[BaseException] = []
            died = pool.apply_async(os._exit, (4,), error_callback=errors.append)
            assert [_lost(died)] == errors
            assert pool.map(double, range(10)) == list(range(0, 20, 2))
        assert max(Counter(noted(notes)).values()) <= 2

    @requires("isolated", "parallel")
    def test_an_idle_worker_that_dies_costs_no_task(self, make: Make, gate: Gate) -> None:
        with make(size=2) as pool:
            pids = _pids(pool, gate)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                assert pool.map(double, range(100)) == list(range(0, 200, 2))
                assert pool.apply(double, (1,)) == 2
                until_gone(pid)

    @requires("isolated", "parallel")
    def test_a_dead_worker_is_replaced(self, make: Make, gates: Gates) -> None:
        with make(size=2) as pool:
            pids = _pids(pool, gates())
            assert _lost(pool.submit(os._exit, 1)).pid in pids
            fresh = _pids(pool, gates())
            assert len(fresh - pids) == 1
            os.kill(min(fresh), signal.SIGKILL)
            until(lambda: bool(_pids(pool, gates()) - fresh), "the killed worker was not replaced")

    @requires("isolated", "parallel")
    def test_all_workers_die_at_once(self, make: Make, gate: Gate, notes: Path) -> None:
        with make(size=3) as pool:
            busy = [pool.submit(note_and_wait, notes, gate) for _ in range(3)]
            gate.arrived(3)
            queued = pool.map_async(double, range(50))
            stream = pool.imap(double, range(50))
            pids = {int(each) for each in noted(notes)}
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            assert {_lost(each).pid for each in busy} == pids
            assert queued.get(PATIENCE) == list(stream) == list(range(0, 100, 2))
            gate.open()

    @requires("isolated")
    def test_a_worker_that_dies_as_it_starts(self, make: Make, notes: Path) -> None:
        config = {"initializer": note_and_call, "initargs": (notes, os._exit, 6)}
        with make(size=2, **config) as pool:
            handles = [pool.submit(double, each) for each in range(20)]
            stream = pool.imap(double, range(20))
            for each in handles:
                assert _lost(each).exitcode == 6
            with pytest.raises(WorkerLostError):
                stream.next(PATIENCE)
            with pytest.raises(WorkerLostError):
                pool.map(double, range(20))
        assert 1 <= len(noted(notes)) <= 3

    @requires("isolated", "parallel")
    def test_a_death_while_the_pool_closes(self, make: Make, gate: Gate) -> None:
        with make(size=1) as pool:
            dying = pool.submit(pass_and_call, gate, _KILLED.call, *_KILLED.args)
            after = [pool.submit(double, each) for each in range(5)]
            gate.arrived()
            pool.close()
            joined = threading.Thread(target=pool.join, daemon=True)
            joined.start()
            gate.open()
            joined.join(PATIENCE)
            assert not joined.is_alive()
            assert isinstance(dying.exception(0), WorkerLostError)
            assert [each.result(0) for each in after] == [0, 2, 4, 6, 8]

    @requires("isolated", "parallel")
    def test_terminate_ends_what_runs(self, make: Make, gate: Gate, notes: Path) -> None:
        with make(size=2) as pool:
            busy = [pool.submit(note_and_wait, notes, gate) for _ in range(2)]
            gate.arrived(2)
            pool.terminate()
            for each in busy:
                with pytest.raises(ClosedError, match="terminated"):
                    each.result(0)
            pool.join()
            until_gone(*map(int, noted(notes)))

    @requires("isolated", "parallel")
    def test_many_threads_and_deaths(self, make: Make, notes: Path) -> None:
        def work(thread: int) -> None:
            own = range(100 * thread, 100 * thread + 100)
            for at, end in zip(own, ends_of(pool.imap(task, own), 100), strict=True):
                if isinstance(end, WorkerLostError):
                    lost.add(str(at))
                else:
                    assert end == at

        lost: set[str] = set()
        task = partial(die_on_some, notes, (130, 270, 399))
        with make(size=2) as pool:
            in_threads(4, work)
            assert pool.map(double, range(10)) == list(range(0, 20, 2))
        ran = Counter(noted(notes))
        assert max(ran.values()) == 1, "a task ran twice"
        # With one that died those are lost, run or not, that a quick worker takes with it.
        assert {*map(str, range(400))} - lost <= {*ran}
        assert {"130", "270", "399"} <= lost & {*ran}


def _pids(pool: Pool, gate: Gate) -> set[int]:
    """Return the process ids of all workers of a pool in which nothing else runs."""
    handle = pool.map_async(partial(own_pid, gate), range(pool.size()))
    gate.arrived(pool.size())
    gate.open()
    return set(handle.get(PATIENCE))


def _lost(handle: PoolResult[Any]) -> WorkerLostError:
    error = handle.exception(PATIENCE)
    assert isinstance(error, WorkerLostError), error
    return error


def end_of(handle: PoolResult[Any], limit: float = PATIENCE) -> object:
    """Return the result of *handle*, or the error that stands in its place."""
    error = handle.exception(limit)
    return handle.result(0) if error is None else error


def ends_of(stream: ResultStream[Any], count: int, limit: float = PATIENCE) -> list[object]:
    """Return all that *stream* gives, *count* results or the error of a death in their place."""
    ends: list[object] = []
    for _ in range(count):
        try:
            ends.append(stream.next(limit))
        except WorkerLostError as error:
            ends.append(error)
    with pytest.raises(StopIteration):
        stream.next(limit)
    return ends
