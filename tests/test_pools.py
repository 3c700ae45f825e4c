from __future__ import annotations

import pytest
from typing_extensions import override

from pparallel.interfaces.pool import PoolConfig
from pparallel.testing import PoolSuite
from pparallel_local import SerialPoolConfig, ThreadPoolConfig


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
