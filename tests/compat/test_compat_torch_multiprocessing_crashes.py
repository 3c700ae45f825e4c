"""The crash grid on ``compat.torch_multiprocessing.Pool``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from crash_grid import IN_THE_CALLER, PLACES, check_deaths, check_failures

import pparallel.compat.torch_multiprocessing as mp
from pparallel.compat.torch_multiprocessing.pool import Pool


@pytest.fixture(params=[None, 1000])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """One worker: it is certain to be replaced when it dies."""
    with mp.Pool(1, maxtasksperchild=request.param) as pool:
        yield pool


def test_failures_in_every_place(pool: Pool) -> None:
    for place, make in {**PLACES, **IN_THE_CALLER}.items():
        check_failures(pool, place, make)


def test_in_the_worker(pool: Pool) -> None:
    for place in ("unpickling the argument", "running", "pickling the result"):
        check_deaths(pool, PLACES[place], ("SIGKILL",))
