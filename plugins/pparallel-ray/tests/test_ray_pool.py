"""The pool on Ray: the suite, on a cluster that runs already."""

from __future__ import annotations

import sys
from typing import ClassVar

import pytest
from typing_extensions import override

import pparallel
from pparallel.testing import PoolSuite
from pparallel_ray import RayPoolConfig
from pparallel_ray.cluster import RayConnection
from ray_clusters import OnRunningCluster
from ray_rank_programs import script

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

    def test_a_worker_knows_the_script(
        self, config: RayPoolConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        main = sys.modules["__main__"]
        monkeypatch.setattr(main, "__spec__", None)
        monkeypatch.setattr(main, "__file__", "/script.py", raising=False)
        with pparallel.build(config.model_copy(update={"size": 1})) as pool:
            assert pool.apply(script) == ("/script.py", sys.argv)
