"""The pool on Ray: the suite, on a cluster that runs already."""

from __future__ import annotations

from typing import ClassVar

import pytest
from typing_extensions import override

from pparallel.testing import PoolSuite
from pparallel_ray import RayPoolConfig
from pparallel_ray.cluster import RayConnection
from ray_clusters import OnRunningCluster

#: what the suite's tasks need is imported once, where all workers are forked from
PRELOAD = ("numpy", "torch", "pparallel.testing.pool.tasks")


class RayPoolSuite(PoolSuite):
    """On whatever cluster."""

    sequences: ClassVar[int] = 4

    @override
    @pytest.fixture
    def config(self, cluster: RayConnection) -> RayPoolConfig:
        return RayPoolConfig(cluster=cluster, preload=PRELOAD)


class TestOnRunningCluster(OnRunningCluster, RayPoolSuite):
    """On a cluster that runs already."""
