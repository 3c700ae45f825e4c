"""The crash grid on ``compat.machin.pool``: on a native pool, and on the engine."""

from __future__ import annotations

import pytest
from crash_grid import IN_THE_CALLER, PLACES, check_deaths, check_failures

from pparallel.compat.machin.pool import BasePool, Pool

each_road = pytest.mark.parametrize("kind", [Pool, BasePool])


@each_road
def test_failures_in_every_place(kind: type[BasePool]) -> None:
    with kind(1) as pool:
        for place, make in {**PLACES, **IN_THE_CALLER}.items():
            check_failures(pool, place, make)


@each_road
def test_in_the_worker(kind: type[BasePool]) -> None:
    with kind(1) as pool:
        for place in ("unpickling the argument", "pickling the result"):
            check_deaths(pool, PLACES[place], ("SIGKILL",))


def test_a_task_that_dies_on_the_engine() -> None:
    with BasePool(1) as pool:
        check_deaths(pool, PLACES["running"])
