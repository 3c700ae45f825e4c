from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings

from pparallel.testing import Suite, no_leftovers

FULL = os.environ.get("PPARALLEL_TEST_SCALE") == "full"

settings.register_profile("pparallel", deadline=None)  # how quick anything is, is nobody's test
settings.load_profile("pparallel")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has what it runs in the background ignore Ctrl-C, and so would all programs of the
    # tests: what they do then is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: what takes longest comes first: of several processes none is left alone with it at the end
LONGEST = (
    "test_broken_backends",
    "test_torchrun",
    "test_examples",
    "test_moving",
    "test_benchmarks",
    "test_docs",
    "test_linearizability",
    "test_pools",
    "test_process_pool_stress",
    "test_zmq_faults",
    "test_member_faults",
    "test_process_pool_ends",
    "test_process_pool_everywhere",
    "test_cli_live",
    "test_cli",
    "test_joblib",
    "test_gloo_jobs",
    "test_digits",
    "test_a3c_example",
    "test_torch_rpc",
    "test_gloo",
    "test_shm_collective",
    "test_process_launcher",
    "test_process_pool_engine",
    "test_process_pool_workers",
    "test_all_reduce_reducer",
    "test_launchers",
    "test_zmq_security",
    "test_zmq",
    "test_ipc",
    "test_collectives",
    "test_process_launcher_ends",
    "test_process_launcher_patterns",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
    if not FULL and all(Path(each).is_dir() for each in config.args):
        left_out = _left_out(items)
        items[:] = [each for each in items if each not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def _left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return five in six of the tests that are costly: at full scale, all are run.

    Of each class, and of each function's cases, at least one stays. Their names draw them, which
    mixes the parameters, and draws the same in every process of a run.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for each in items:
        if each.get_closest_marker("costly"):
            groups.setdefault(_group(each), []).append(each)
    left_out: set[pytest.Item] = set()
    for group in groups.values():
        group.sort(key=lambda each: crc32(each.nodeid.encode()))
        left_out.update(group[(len(group) + 5) // 6 :])
    return left_out


def _group(item: pytest.Item) -> str:
    whole, _, last = item.nodeid.rpartition("::")
    return whole if getattr(item, "cls", None) else f"{whole}::{last.partition('[')[0]}"


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what is imported by now need not be searched after every test


@pytest.fixture(scope="session")
def scale() -> Callable[[int], int]:
    """How many rounds a test runs: all with PPARALLEL_TEST_SCALE=full, else a tenth."""
    return lambda rounds: rounds if FULL else max(1, rounds // 10)


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    if isinstance(request.cls, type) and issubclass(request.cls, Suite):  # it looks for itself
        yield
        return
    with no_leftovers():
        yield
