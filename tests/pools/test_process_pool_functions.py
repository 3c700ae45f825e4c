"""What tasks call: functions go by name, all else as it is at the time of the call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from process_backends import pool_of
from typing_extensions import override

from pparallel.testing.patience import PATIENCE

Make = Callable[..., Any]
Run = Callable[[Any, Callable[..., Any], Any], Any]  #: calls a function of one argument

RUNS: dict[str, Run] = {
    "apply": lambda pool, func, number: pool.apply(func, (number,)),
    "apply_async": lambda pool, func, number: pool.apply_async(func, (number,)).get(PATIENCE),
    "submit": lambda pool, func, number: pool.submit(func, number).result(PATIENCE),
    "map": lambda pool, func, number: pool.map(func, [number] * 3)[2],
    "map_async": lambda pool, func, number: pool.map_async(func, [number]).get(PATIENCE)[0],
    "starmap": lambda pool, func, number: pool.starmap(func, [(number,)])[0],
    "imap": lambda pool, func, number: list(pool.imap(func, [number] * 3))[2],
    "imap_unordered": lambda pool, func, number: next(pool.imap_unordered(func, [number])),
    "executor": lambda pool, func, number: pool.as_executor().submit(func, number).result(PATIENCE),
}


@pytest.fixture
def make() -> Make:
    return partial(pool_of, "process")


class Scale:
    """Can be called, and changes."""

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, number: int) -> int:
        return self.by * number

    def scaled(self, number: int) -> int:
        return self.by * number


class Slotted:
    """The same, and nothing can refer to it weakly."""

    __slots__ = ("by",)

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, number: int) -> int:
        return self.by * number


class Counting(Scale):
    """Counts how often it is sent."""

    sent = 0

    @override
    def __reduce__(self) -> Any:
        type(self).sent += 1
        return Counting, (self.by,)


# -- what has changed since it was sent --------------------------------------------------------


def test_an_object_that_changes_between_calls(make: Make) -> None:
    scale, slotted = Scale(2), Slotted(2)
    method, bound = scale.scaled, partial(Scale.scaled, scale)
    with make(size=1) as pool:
        for call, run in RUNS.items():
            for each in (2, 3, 10):
                scale.by = slotted.by = each
                for func in (scale, slotted, method, bound):
                    found = [run(pool, func, 5), run(pool, func, 5)]
                    assert found == [5 * each] * 2, (call, func)


def test_arguments_of_a_partial_that_change_between_calls(make: Make) -> None:
    given = [1]
    func, largest = partial(given_and, given), partial(max, given)
    with make(size=1) as pool:
        for call, run in RUNS.items():
            for each in range(3):
                given[0] = each
                assert run(pool, func, 7) == [each, 7], call
                given.append(9)
                assert run(pool, largest, [each]) == [each, 9], call
                given.pop()


def given_and(given: list[int], number: int) -> list[int]:
    return [*given, number]


def test_several_calls_of_one_object_at_once(make: Make) -> None:
    """Each keeps to what the object was when the call was made."""
    scale = Scale(0)
    with make() as pool:
        handles = []
        for each in range(50):
            scale.by = each
            handles.append(pool.submit(scale, 3))
            handles.append(pool.map_async(scale, [3] * 10))
        for at, handle in enumerate(handles):
            assert handle.result(PATIENCE) in (3 * (at // 2), [3 * (at // 2)] * 10)


def test_a_closure_that_changes_between_calls(make: Make) -> None:
    with make(size=1) as pool:
        cell = 0

        def count(x: int) -> int:
            return x + cell

        for each in range(300):
            cell = each
            assert pool.apply(count, (1,)) == each + 1


# -- how often it is sent ----------------------------------------------------------------------


@pytest.mark.parametrize("call", ["map", "imap", "imap_unordered"])
def test_a_function_is_serialised_once_for_a_call(make: Make, call: str) -> None:
    with make() as pool:
        for by in (2, 3):
            func, before = Counting(by), Counting.sent
            found = sorted(getattr(pool, call)(func, range(20_000)))
            assert found == [by * each for each in range(20_000)]
            assert 1 <= Counting.sent - before <= 2


def test_many_functions(make: Make) -> None:
    """Those that nobody has any longer are forgotten by the workers too."""
    with make(size=1) as pool:
        handles = [pool.submit(lambda x, y=y: x + y, 1) for y in range(500)]
        assert [each.result(PATIENCE) for each in handles] == list(range(1, 501))
        big = [bytes([each]) * 1_000_000 for each in range(100)]
        assert [pool.apply(lambda b=b: b[0]) for b in big] == list(range(100))
