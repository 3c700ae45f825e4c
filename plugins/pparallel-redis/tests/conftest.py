from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings
from redis_servers import DURABLE, RedisServer, running

from pparallel.testing import Suite, no_leftovers
from pparallel.testing.patience import ends_within
from pparallel_redis import RedisOrderedServerConfig

FULL = os.environ.get("PPARALLEL_TEST_SCALE") == "full"
LIMIT = 240.0  #: seconds after which a test hangs, with its fixtures, and fails where it stands

settings.register_profile("pparallel", deadline=None)  # how quick anything is, is nobody's test
settings.load_profile("pparallel")

_numbers = itertools.count()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out five in six of the tests that are costly; at full scale, none."""
    if FULL or not all(Path(each).is_dir() for each in config.args):
        return
    left_out = _left_out(items)
    items[:] = [each for each in items if each not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def _left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return five in six of the costly tests; of each class, at least one stays."""
    groups: dict[str, list[pytest.Item]] = {}
    for each in items:
        if each.get_closest_marker("costly"):
            groups.setdefault(each.nodeid.rpartition("::")[0], []).append(each)
    left_out: set[pytest.Item] = set()
    for group in groups.values():
        group.sort(key=lambda each: crc32(each.nodeid.encode()))
        left_out.update(group[(len(group) + 5) // 6 :])
    return left_out


@pytest.fixture(scope="session")
def scale() -> Callable[[int], int]:
    """How many rounds a test runs: all with PPARALLEL_TEST_SCALE=full, else a tenth."""
    return lambda rounds: rounds if FULL else max(1, rounds // 10)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A server that all tests share which do it no harm; each has a namespace of its own."""
    with running() as server:
        yield server


@pytest.fixture
def durable_server() -> Iterator[RedisServer]:
    """A server that keeps what it has acknowledged, and may be killed."""
    with running(*DURABLE) as server:
        yield server


@pytest.fixture
def namespace() -> str:
    return f"test-{next(_numbers)}"


@pytest.fixture
def redis_config(redis_server: RedisServer, namespace: str) -> RedisOrderedServerConfig:
    return redis_server.config(namespace)


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    if isinstance(request.cls, type) and issubclass(request.cls, Suite):  # it looks for itself
        yield
        return
    with ends_within(LIMIT), no_leftovers():
        yield
