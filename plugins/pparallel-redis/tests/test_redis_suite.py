"""The ordered server suite, on a real server."""

from __future__ import annotations

from typing import ClassVar

import pytest
from redis_servers import RedisServer, only
from typing_extensions import override

import pparallel
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.interfaces.serializer import SerializerConfig
from pparallel.testing import OrderedServerSuite

PRELOAD = ("numpy", "torch", "pparallel.builder.runtime", "pparallel_redis.server")


class TestRedisOrderedServer(OrderedServerSuite):
    """Over a Unix socket; members are threads."""

    sequences: ClassVar[int] = 16

    @pytest.fixture
    @override
    def config(self, redis_server: RedisServer, namespace: str) -> OrderedServerConfig:
        return redis_server.config(namespace)


@only(
    "test_a_push_needs_the_newest_version",
    "test_holds_the_newest_versions",
    "test_keys_and_versions_of_all_kinds",
    "test_what_is_stored_is_a_snapshot",
    "test_pulls_into",
    "test_large_values",
    "test_one_push_wakes_the_waiters_of_all_members",
    "test_members_see_one_order",
    "test_after_a_member_left",
    "test_a_fork_goes_on_without_its_parent",
)
class TestRedisAmongProcesses(OrderedServerSuite):
    """Over TCP, with pickles; members are processes."""

    @pytest.fixture
    @override
    def config(self, redis_server: RedisServer, namespace: str) -> OrderedServerConfig:
        pickles = pparallel.load(SerializerConfig, {"backend": "pickle"})
        tcp = redis_server.tcp
        return redis_server.config(namespace, url=tcp, serializer=pickles, trusted=True)

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return pparallel.load(LauncherConfig, {"backend": "process", "preload": list(PRELOAD)})
