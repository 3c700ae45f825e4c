from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from pparallel.testing.leftovers import no_leftovers

FULL = os.environ.get("PPARALLEL_TEST_SCALE") == "full"


@pytest.fixture(scope="session")
def scale() -> Callable[[int], int]:
    """How many rounds a test runs: all with PPARALLEL_TEST_SCALE=full, else a tenth."""
    return lambda rounds: rounds if FULL else max(1, rounds // 10)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    if "PPARALLEL_BROKEN_OUTCOMES" in os.environ:  # there the suites look for themselves
        yield
        return
    with no_leftovers():
        yield
