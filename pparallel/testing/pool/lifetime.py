"""How a pool is opened, closed, joined and terminated."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pparallel.errors import ClosedError
from pparallel.interfaces.pool import Pool
from pparallel.testing.gate import Gate
from pparallel.testing.leftovers import no_leftovers
from pparallel.testing.patience import PATIENCE
from pparallel.testing.pool.base import Make, PoolTests
from pparallel.testing.pool.tasks import (
    Refused,
    double,
    note,
    noted,
    power,
    refuse,
    wait_or_note,
)
from pparallel.testing.suite import requires


class LifetimeTests(PoolTests):
    """Tests of a pool's beginning and end."""

    def test_use_before_open(self, make: Make) -> None:
        pool = make(size=2)
        _refuses_all(pool)
        with pool:
            assert pool.map(double, [1]) == [2]

    def test_close_stops_intake_only(self, make: Make, notes: Path) -> None:
        pool = make(size=2)
        pool.open()
        mapped = pool.map_async(partial(note, notes), range(200))
        single = pool.submit(note, notes, 200)
        pool.close()
        _refuses_all(pool)
        pool.join()
        assert mapped.get(0) == list(range(200))
        assert single.get(0) == 200
        assert len(noted(notes)) == 201
        _refuses_all(pool)

    @requires("parallel")
    def test_join_waits_for_what_was_taken(self, make: Make, gate: Gate) -> None:
        with make(size=1) as pool:
            handles = [pool.submit(gate.pass_through, 0), pool.submit(double, 1)]
            gate.arrived()
            pool.close()
            joined = threading.Thread(target=pool.join, daemon=True)
            joined.start()
            joined.join(0.1)
            assert joined.is_alive()
            gate.open()
            joined.join(PATIENCE)
            assert not joined.is_alive()
            assert [each.get(0) for each in handles] == [0, 2]

    def test_the_end_of_with_waits(self, make: Make) -> None:
        with make(size=2) as pool:
            handle = pool.map_async(double, range(100))
        assert handle.ready()
        assert handle.get() == list(range(0, 200, 2))
        _refuses_all(pool)

    def test_ending_twice(self, make: Make) -> None:
        with make(size=2) as pool:
            assert pool.apply(double, (2,)) == 4
        for _ in range(2):
            pool.close()
            pool.join()
            pool.terminate()
            pool.join()
        with pytest.raises(ClosedError, match=r"again|twice"):
            pool.open()

    def test_ending_what_was_never_open(self, make: Make) -> None:
        for end in ("close", "terminate"):
            pool = make(size=2)
            getattr(pool, end)()
            pool.join()
            _refuses_all(pool)

    def test_join_of_an_open_pool(self, pool: Pool) -> None:
        with pytest.raises(ValueError, match="close"):
            pool.join()
        assert pool.apply(double, (1,)) == 2

    @requires("parallel")
    def test_an_exception_in_with_terminates(self, make: Make, gate: Gate) -> None:
        with pytest.raises(Refused), make(size=1) as pool:  # noqa: PT012 - all of it counts
            running, waiting = pool.submit(gate.pass_through), pool.submit(double, 1)
            gate.arrived()
            refuse("in with")
        for handle in (running, waiting):
            with pytest.raises(ClosedError, match="terminated"):
                handle.get(0)
        gate.open()

    @requires("parallel")
    def test_terminate_wakes_those_who_wait(self, make: Make, gate: Gate) -> None:
        with make(size=1) as pool:
            running = pool.submit(gate.pass_through)
            gate.arrived()
            mapped, stream = pool.map_async(double, range(9)), pool.imap(double, range(9))
            woken = [_raised_in_a_thread(each.get) for each in (running, mapped)]
            woken.append(_raised_in_a_thread(partial(next, stream)))
            joined = threading.Thread(target=lambda: (pool.close(), pool.join()), daemon=True)
            joined.start()
            pool.terminate()
            for result in woken:
                with pytest.raises(ClosedError, match="terminated"):
                    result()
            joined.join(PATIENCE)
            assert not joined.is_alive()
            _refuses_all(pool)
        gate.open()

    @requires("parallel")
    def test_terminate_starts_nothing_more(self, make: Make, gate: Gate, notes: Path) -> None:
        with make(size=1) as pool:
            pool.map_async(partial(wait_or_note, gate.pass_through, notes), range(100))
            gate.arrived()
            pool.map_async(partial(note, notes), range(100))
            pool.submit(note, notes, 100)
            pool.terminate()
            gate.open()
            pool.join()
        assert noted(notes) == []

    @requires("parallel")
    def test_join_abandons_what_terminate_cannot_end(self, make: Make, gate: Gate) -> None:
        with make(size=1) as pool, contextlib.closing(gate):
            pool.submit(gate.pass_through)
            gate.arrived()
            pool.terminate()
            joined = threading.Thread(target=pool.join, daemon=True)
            joined.start()
            joined.join(PATIENCE)
            assert not joined.is_alive()

    @requires("parallel")
    def test_callbacks_of_a_terminated_pool(self, make: Make, gate: Gate) -> None:
        errors: list[BaseException] = []
        with make(size=1) as pool:
            pool.apply_async(gate.pass_through, error_callback=errors.append)
            gate.arrived()
            pool.map_async(double, [1], error_callback=errors.append)
            pool.terminate()
            assert [type(each) for each in errors] == [ClosedError, ClosedError]
        gate.open()

    def test_nothing_is_left_behind(self, make: Make) -> None:
        with no_leftovers(self.patience):
            for _ in range(3):
                with make(size=2) as pool:
                    _use(pool)
        with make(size=1) as pool:
            _use(pool)
            with no_leftovers(self.patience):
                for _ in range(20):
                    _use(pool)

    def test_a_pool_cannot_be_sent(self, pool: Pool) -> None:
        for send in (pickle.dumps, copy.copy):
            with pytest.raises(NotImplementedError, match="cannot be passed between processes"):
                send(pool)


def _refuses_all(pool: Pool) -> None:
    calls: list[tuple[Callable[..., object], tuple[object, ...]]] = [
        (call, (double, items))
        for call in (pool.map, pool.map_async, pool.imap, pool.imap_unordered)
        for items in ([1], [])
    ]
    calls += [(call, (power, [(1, 2)])) for call in (pool.starmap, pool.starmap_async)]
    calls += [(call, (double, (1,))) for call in (pool.apply, pool.apply_async)]
    calls += [(call, (double, 1)) for call in (pool.submit, pool.as_executor().submit)]
    for call, args in calls:
        with pytest.raises(ClosedError, match=type(pool).__name__):
            call(*args)


def _use(pool: Pool) -> None:
    assert pool.apply(double, (1,)) == 2
    assert pool.map(double, range(10)) == list(pool.imap(double, range(10)))
    assert isinstance(pool.submit(refuse, 1).exception(PATIENCE), Refused)


def _raised_in_a_thread(wait: Callable[[], object]) -> Callable[[], object]:
    """Run *wait* in a thread; return what raises its exception in this one."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            wait()
        except Exception as error:  # noqa: BLE001 - raised in the test
            errors.append(error)

    def outcome() -> None:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "it still waits"
        raise errors[0]

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return outcome
