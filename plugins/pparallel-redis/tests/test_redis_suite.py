"""The ordered server suite, on a real server."""

from __future__ import annotations

import pytest
from redis_servers import RedisServer
from typing_extensions import override

import pparallel
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.interfaces.serializer import SerializerConfig
from pparallel.testing import OrderedServerSuite

PRELOAD = ("numpy", "torch", "pparallel.builder.runtime", "pparallel_redis.server")


class TestRedisOrderedServer(OrderedServerSuite):
    """Over a Unix socket; members are threads."""

    @pytest.fixture
    @override
    def config(self, redis_server: RedisServer, namespace: str) -> OrderedServerConfig:
        return redis_server.config(namespace)


@pytest.mark.costly
class TestRedisOverTcpWithPickles(OrderedServerSuite):
    @pytest.fixture
    @override
    def config(self, redis_server: RedisServer, namespace: str) -> OrderedServerConfig:
        pickles = pparallel.load(SerializerConfig, {"backend": "pickle"})
        tcp = redis_server.tcp
        return redis_server.config(namespace, url=tcp, serializer=pickles, trusted=True)


@pytest.mark.costly
class TestRedisAmongProcesses(OrderedServerSuite):
    """Members are processes."""

    @pytest.fixture
    @override
    def config(self, redis_server: RedisServer, namespace: str) -> OrderedServerConfig:
        return redis_server.config(namespace, url=redis_server.tcp)

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return pparallel.load(LauncherConfig, {"backend": "process", "preload": list(PRELOAD)})
