from __future__ import annotations

import pytest
from typing_extensions import override

from pparallel.interfaces.pool import PoolConfig
from pparallel.testing import PoolSuite
from pparallel_local import SerialPoolConfig, ThreadPoolConfig
from pparallel_process import P2PPoolConfig, ProcessPoolConfig

#: imported by the fork server, once: the suite's tasks live beside its tests, which need pytest
PRELOAD = ("numpy", "torch", "pparallel.testing.pool.tasks")


class TestSerialPool(PoolSuite):
    @pytest.fixture
    @override
    def config(self) -> PoolConfig:
        return SerialPoolConfig()


class TestThreadPool(PoolSuite):
    @pytest.fixture
    @override
    def config(self) -> PoolConfig:
        return ThreadPoolConfig()


class TestProcessPool(PoolSuite):
    @pytest.fixture
    @override
    def config(self) -> PoolConfig:
        return ProcessPoolConfig(preload=PRELOAD)


@pytest.mark.costly
class TestP2PPool(PoolSuite):
    @pytest.fixture
    @override
    def config(self) -> PoolConfig:
        return P2PPoolConfig(preload=PRELOAD)
