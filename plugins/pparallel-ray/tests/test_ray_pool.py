"""The pool on Ray: the suite, on a cluster that runs already and on one of our own."""

from __future__ import annotations

import pytest
from typing_extensions import override

from pparallel.testing import PoolSuite
from pparallel_ray import RayPoolConfig
from pparallel_ray.cluster import RayConnection
from ray_clusters import OnOwnCluster, OnRunningCluster

#: what the suite's tasks need is imported once, where all workers are forked from
PRELOAD = ("numpy", "torch", "pparallel.testing.pool.tasks")


class RayPoolSuite(PoolSuite):
    """On whatever cluster."""

    @override
    @pytest.fixture
    def config(self, cluster: RayConnection) -> RayPoolConfig:
        return RayPoolConfig(cluster=cluster, preload=PRELOAD)


@pytest.mark.costly
class TestOnRunningCluster(OnRunningCluster, RayPoolSuite):
    """On a cluster that runs already."""


@pytest.mark.costly
class TestOnOwnCluster(OnOwnCluster, RayPoolSuite):
    """On a cluster that pparallel has started."""
