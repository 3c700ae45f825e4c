"""The crash grid on ``compat.torch_multiprocessing.Pool``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from crash_grid import IN_THE_CALLER, PLACES, check_deaths, check_failures

import pparallel.compat.torch_multiprocessing as mp
from pparallel.compat.torch_multiprocessing.pool import Pool


@pytest.fixture(params=[None, 1000])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """One worker: it is certain to be replaced when it dies."""
    with mp.Pool(1, maxtasksperchild=request.param) as pool:
        yield pool


@pytest.mark.costly
@pytest.mark.parametrize("place", PLACES)
def test_in_the_worker(pool: Pool, place: str, scale: Callable[[int], int]) -> None:
    check_failures(pool, place, PLACES[place])
    check_deaths(pool, PLACES[place], ("C exit", "SIGKILL") if scale(10) < 10 else ())


@pytest.mark.costly
@pytest.mark.parametrize("place", IN_THE_CALLER)
def test_in_the_caller(pool: Pool, place: str) -> None:
    check_failures(pool, place, IN_THE_CALLER[place])


def test_the_quickest_of_each() -> None:
    with mp.Pool(1) as pool:
        check_failures(pool, "running", PLACES["running"])
        check_deaths(pool, PLACES["running"], ("SIGKILL",))
