from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import settings
from redis_servers import DURABLE, RedisServer, running

from pparallel.testing import Suite, no_leftovers
from pparallel_redis import RedisOrderedServerConfig

# Each run tries the same examples.
settings.register_profile("pparallel", deadline=None, derandomize=True, database=None)
settings.load_profile("pparallel")

_numbers = itertools.count()


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
    with no_leftovers():
        yield
