"""Options of isolated pools: tests are skipped where the backend's config has no such field."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from pathlib import Path

import psutil
import pytest

from pparallel.errors import TaskTimeoutError, WorkerLostError
from pparallel.testing.gate import Gate
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.pool.base import Gates, Make, PoolTests
from pparallel.testing.pool.tasks import (
    Refused,
    die_at_first,
    double,
    hoard,
    note_and_call,
    note_and_wait,
    note_or_refuse,
    noted,
    own_pid_of,
    pause,
    refuse,
    wait_on_first,
)
from pparallel.testing.suite import requires

_BRIEF = 0.3  #: seconds that a task may take in these tests


class OptionTests(PoolTests):
    """Tests of retries, time-outs, and of workers that are replaced in time."""

    @requires("isolated")
    def test_retries(self, make: Make, notes: Path) -> None:
        with make(size=2, retries=2) as pool:
            assert pool.submit(die_at_first, notes, 2, 0).result(PATIENCE) == 0
            found = pool.map_async(partial(die_at_first, notes, 1), range(1, 6)).get(PATIENCE)
            assert found == list(range(1, 6))
            arguments = iter([notes, 1, 6])  # which are there again the next time
            assert pool.starmap_async(die_at_first, [arguments]).get(PATIENCE) == [6]
        starts = Counter(map(int, noted(notes)))
        assert starts[0] == 3
        assert all(2 <= starts[each] <= 3 for each in range(1, 6)), starts

    @requires("isolated")
    def test_retries_come_to_an_end(self, make: Make, notes: Path) -> None:
        with make(size=1, retries=1) as pool:
            error = pool.submit(note_and_call, notes, os._exit, 5).exception(PATIENCE)
            assert isinstance(error, WorkerLostError)
            assert error.exitcode == 5
            assert str(error.pid) == noted(notes)[-1]
            assert pool.map(double, range(9)) == list(range(0, 18, 2))
        assert len(noted(notes)) == 2

    @requires("isolated")
    def test_what_raises_is_not_retried(self, make: Make, notes: Path) -> None:
        with make(size=1, retries=3) as pool:
            with pytest.raises(Refused):
                pool.submit(note_and_call, notes, refuse, 1).result(PATIENCE)
            with pytest.raises(Refused):
                pool.map(partial(note_or_refuse, notes), [1, 0])
        assert len(noted(notes)) == 2

    @requires("isolated")
    def test_a_task_that_takes_too_long(self, make: Make, gate: Gate, notes: Path) -> None:
        with make(size=1, task_timeout=_BRIEF) as pool:
            for at in range(2):
                stuck = pool.submit(note_and_wait, notes, gate)
                after = pool.map_async(double, range(50))
                with pytest.raises(TaskTimeoutError) as caught:
                    stuck.result(PATIENCE)
                assert caught.value.timeout == _BRIEF
                assert after.get(PATIENCE) == list(range(0, 100, 2))
                pid = int(noted(notes)[at])
                until(partial(_is_gone, pid), "its worker did not end")

    @requires("isolated")
    def test_a_timeout_is_one_tasks_own(self, make: Make, gate: Gate) -> None:
        with make(size=1, task_timeout=_BRIEF) as pool:
            stream = pool.imap(partial(wait_on_first, gate.pass_through), range(50))
            with pytest.raises(TaskTimeoutError) as caught:
                stream.next(PATIENCE)
            assert caught.value.timeout == _BRIEF
            assert [stream.next(PATIENCE) for _ in range(49)] == list(range(1, 50))

    @requires("isolated")
    def test_time_in_the_queue_does_not_count(self, make: Make) -> None:
        with make(size=1, task_timeout=2 * _BRIEF) as pool:
            mapped = pool.map_async(pause, [_BRIEF / 3] * 7)
            handles = [pool.submit(pause, _BRIEF / 3) for _ in range(2)]
            assert [each.result(PATIENCE) for each in handles] == mapped.get(PATIENCE)[:2]
            pause(2.2 * _BRIEF)  # nor does a worker's time without a task
            assert pool.map(double, range(9)) == list(range(0, 18, 2))

    @requires("isolated")
    def test_max_tasks(self, make: Make) -> None:
        with make(size=1, max_tasks=3) as pool:
            single = [pool.apply(os.getpid) for _ in range(7)]
            mapped = pool.map(own_pid_of, range(10))
            streamed = [*pool.imap(own_pid_of, range(10))]
        counts = Counter([*single, *mapped, *streamed])
        assert sum(counts.values()) == 27
        assert max(counts.values()) <= 3

    @requires("isolated", "parallel")
    def test_max_tasks_of_several_workers(self, make: Make, gates: Gates, notes: Path) -> None:
        run = partial(note_and_call, notes, double)
        with make(size=2, max_tasks=5) as pool:
            assert pool.map(run, range(20)) == list(range(0, 40, 2))
            assert [*pool.imap_unordered(double, range(20))]
            handles = [pool.submit(double, each) for each in range(20)]
            assert [each.result(PATIENCE) for each in handles] == list(range(0, 40, 2))
            gate = gates()
            last = pool.map_async(gate.pass_through, range(2))
            gate.arrived(2)
            gate.open()
            assert last.get(PATIENCE) == [0, 1]
        counts = Counter(noted(notes))
        assert sum(counts.values()) == 20
        assert max(counts.values()) <= 5

    @requires("isolated")
    def test_max_rss(self, make: Make) -> None:
        with make(size=1, max_rss=400 << 20) as pool:
            first = pool.apply(hoard, (1,))
            assert {pool.apply(hoard, (1,)) for _ in range(5)} == {first}
            assert pool.apply(hoard, (600 << 20,)) == first
            until(lambda: pool.apply(hoard, (1,)) != first, "the large worker was not replaced")
            assert pool.map(double, range(9)) == list(range(0, 18, 2))

    @requires("isolated")
    def test_max_rss_after_the_last_task(self, make: Make) -> None:
        with make(size=1, max_rss=16 << 20) as pool:
            small, large = pool.map(hoard, [1, 24 << 20])  # soon after one another
            assert small == large
            until(lambda: _is_gone(large), "the large worker was not replaced")
            assert pool.map(double, range(9)) == list(range(0, 18, 2))


def _is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)
