"""The crash grid on ``compat.machin.pool.Pool``, and deaths of tasks on the engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from crash_grid import IN_THE_CALLER, PLACES, Place, check_deaths, check_failures

from pparallel.compat.machin.pool import BasePool, Pool


@pytest.mark.costly
@pytest.mark.parametrize("place", PLACES)
def test_in_the_worker(place: str, scale: Callable[[int], int]) -> None:
    with Pool(1) as pool:
        check_failures(pool, place, PLACES[place])
        # each death costs an interpreter's start; the full scale has the full grid
        check_deaths(pool, PLACES[place], ("C exit", "SIGKILL") if scale(10) < 10 else ())


@pytest.mark.costly
@pytest.mark.parametrize("place", IN_THE_CALLER)
def test_in_the_caller(place: str) -> None:
    with Pool(1) as pool:
        check_failures(pool, place, IN_THE_CALLER[place])


def test_a_task_that_dies() -> None:
    with Pool(1) as pool:
        check_deaths(pool, PLACES["running"], ("SIGKILL",))


def test_a_task_that_dies_on_the_engine() -> None:
    with BasePool(1) as pool:
        check_failures(pool, "running", PLACES["running"])
        check_deaths(pool, PLACES["running"])


EVERYWHERE: dict[str, Place] = {**PLACES, **IN_THE_CALLER}


@pytest.mark.costly
@pytest.mark.parametrize("place", EVERYWHERE)
def test_everywhere_on_the_engine(place: str) -> None:
    with BasePool(1) as pool:
        check_failures(pool, place, EVERYWHERE[place])
        if place in PLACES:
            check_deaths(pool, PLACES[place])
