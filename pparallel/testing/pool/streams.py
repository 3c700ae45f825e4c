"""How ``imap`` and ``imap_unordered`` take items and give results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from pparallel.errors import ClosedError, TaskTimeoutError
from pparallel.interfaces.pool import QUICK_LOOKAHEAD, Pool
from pparallel.testing.gate import Gate
from pparallel.testing.patience import PATIENCE
from pparallel.testing.pool.base import Make, PoolTests
from pparallel.testing.pool.tasks import Refused, double, refuse_odd, wait_on_first
from pparallel.testing.suite import requires

_MANY = 25 * QUICK_LOOKAHEAD  #: more than may be taken; not endless, for a pool that takes all


class StreamTests(PoolTests):
    """Tests of ``imap`` and ``imap_unordered``."""

    def test_imap_gives_all_results(self, pool: Pool) -> None:
        count = 3 * QUICK_LOOKAHEAD
        expected = range(0, 2 * count, 2)
        assert list(pool.imap(double, iter(range(count)))) == list(expected)
        assert sorted(pool.imap_unordered(double, iter(range(count)))) == list(expected)

    @requires("parallel")
    def test_unordered_results_come_at_once(self, pool: Pool, gate: Gate) -> None:
        stream = pool.imap_unordered(partial(wait_on_first, gate.pass_through), range(50))
        others = [stream.next(PATIENCE) for _ in range(49)]
        assert sorted(others) == list(range(1, 50))
        gate.open()
        assert list(stream) == [0]

    @requires("parallel")
    def test_ordered_results_come_at_once(self, make: Make, gate: Gate) -> None:
        with make(size=1) as pool:
            tasks = [double, double, gate.pass_through]
            stream = pool.imap(_called_with_two, tasks)
            assert [stream.next(PATIENCE), stream.next(PATIENCE)] == [4, 4]
            gate.arrived()
            with pytest.raises(TaskTimeoutError):
                stream.next(0.01)
            gate.open()
            assert list(stream) == [2]

    def test_imap_is_bounded(self, pool: Pool, gate: Gate) -> None:
        taken: list[int] = []
        for imap in (pool.imap, pool.imap_unordered):
            taken.clear()
            stream = imap(double, _recorded(taken))
            assert pool.lookahead() <= QUICK_LOOKAHEAD
            for returned in range(1, 200):
                next(stream)
                assert len(taken) <= returned + QUICK_LOOKAHEAD
        taken.clear()
        slow = pool.imap(gate.pass_through, _recorded(taken))
        assert len(taken) <= pool.lookahead()
        gate.open()
        assert [next(slow), next(slow)] == [0, 1]

    def test_imap_goes_on_after_a_failure(self, pool: Pool) -> None:
        stream = pool.imap(refuse_odd, range(100))
        for each in range(0, 100, 2):
            assert next(stream) == each
            with pytest.raises(Refused, match=f"refused {each + 1}$"):
                next(stream)
        with pytest.raises(StopIteration):
            next(stream)

    def test_unordered_imap_goes_on_after_a_failure(self, pool: Pool) -> None:
        values: list[int] = []
        errors: list[str] = []
        stream = pool.imap_unordered(refuse_odd, range(100))
        for _ in range(100):
            try:
                values.append(next(stream))
            except Refused as error:
                errors.append(str(error))
        assert sorted(values) == list(range(0, 100, 2))
        assert sorted(errors) == sorted(f"refused {each}" for each in range(1, 100, 2))
        assert list(stream) == []

    def test_an_iterable_that_raises(self, pool: Pool) -> None:
        stream = pool.imap(double, _raising(3))
        assert [next(stream) for _ in range(3)] == [0, 2, 4]
        with pytest.raises(Refused, match="the iterable"):
            next(stream)
        assert list(stream) == []
        stream, values, errors = pool.imap_unordered(double, _raising(3)), list[int](), 0
        while errors < 2:  # it comes at any place, once, and no result is lost
            try:
                values.append(stream.next(PATIENCE))
            except StopIteration:
                break
            except Refused:
                errors += 1
        assert (sorted(values), errors) == ([0, 2, 4], 1)
        for call in (pool.map, pool.map_async):
            with pytest.raises(Refused, match="the iterable"):
                call(double, _raising(3))
        assert pool.map(double, [1]) == [2]

    def test_imap_goes_on_after_close(self, make: Make) -> None:
        pool = make(size=2)
        pool.open()
        count = 2 * QUICK_LOOKAHEAD
        stream = pool.imap(double, range(count))
        pool.close()
        assert list(stream) == list(range(0, 2 * count, 2))
        pool.join()

    def test_imap_ends_with_the_pool(self, make: Make) -> None:
        with make(size=2) as pool:
            stream = pool.imap(double, range(_MANY))
            assert next(stream) == 0
        results: list[int] = []
        with pytest.raises(ClosedError, match="joined"):
            results.extend(each for each in stream)
        assert list(stream) == []

    def test_what_cannot_be_iterated(self, pool: Pool) -> None:
        calls: list[Callable[..., object]] = [pool.map, pool.imap, pool.imap_unordered]
        for call in (*calls, pool.starmap, pool.starmap_async):
            with pytest.raises(TypeError, match="not iterable"):
                call(double, None)


def _called_with_two(task: object) -> object:
    assert callable(task)
    return task(2)


def _recorded(taken: list[int]) -> Iterator[int]:
    for each in range(_MANY):
        taken.append(each)
        yield each


def _raising(count: int) -> Iterator[int]:
    yield from range(count)
    message = "the iterable"
    raise Refused(message)
