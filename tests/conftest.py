from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from thinning import FULL, pytest_collection_modifyitems

from pparallel.testing import Suite, no_leftovers
from pparallel.testing.threads import switching_often

__all__ = ["pytest_collection_modifyitems"]

settings.register_profile("pparallel", deadline=None)  # how quick anything is, is nobody's test
settings.load_profile("pparallel")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has what it runs in the background ignore Ctrl-C, and so would all programs of the
    # tests: what they do then is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what is imported by now need not be searched after every test


@pytest.fixture(scope="session")
def scale() -> Callable[[int], int]:
    """How many rounds a test runs: all with PPARALLEL_TEST_SCALE=full, else a tenth."""
    return lambda rounds: rounds if FULL else max(1, rounds // 10)


@pytest.fixture
def impatient_interpreter() -> Iterator[None]:
    """Threads change places hundreds of times as often: what can happen between two, does."""
    with switching_often():
        yield


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    if isinstance(request.cls, type) and issubclass(request.cls, Suite):  # it looks for itself
        yield
        return
    with no_leftovers():
        yield
