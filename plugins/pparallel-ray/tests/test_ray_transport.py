"""The transport ``ray``."""

from __future__ import annotations

import pytest
from typing_extensions import override

import pparallel
from pparallel.builder import Runtime
from pparallel.interfaces.transport import TransportConfig
from pparallel.testing import TransportSuite
from pparallel.testing.patience import PATIENCE
from pparallel_ray import RayLauncherConfig, RayTransportConfig
from pparallel_ray.cluster import RayConnection
from ray_clusters import OnRunningCluster

#: What members are forked with: it would take each of them seconds to import.
PRELOAD = (
    "ray",
    "torch",
    "pparallel.builder.runtime",
    "pparallel.testing.transport",
    "pparallel_ray.transport.transport",
    "pparallel_reducers.local",
    "pparallel_serializers.dill",
)


class RayTransportSuite(TransportSuite):
    """On whatever cluster."""

    @pytest.fixture
    @override
    def config(self, cluster: RayConnection) -> TransportConfig:
        return RayTransportConfig(cluster=cluster)


class TestRayTransportAmongThreads(OnRunningCluster, RayTransportSuite):
    """Members are threads, on a cluster that runs already."""


def talk(rt: Runtime, count: int) -> tuple[list[int], list[int]]:
    """Have the others note numbers, in order, and send back what they were sent."""
    group = rt.group()
    notes = group.remote(rt.rank, list[int])
    group.pair(f"notes {rt.rank}", notes)
    group.barrier(PATIENCE)
    sizes = []
    for rank in range(rt.world_size):
        there = group.get_paired(f"notes {rank}").to_here()
        for number in range(count):
            there.rpc_async().append(number)
        sizes.append(len(group.rpc_sync(rank, bytearray, args=(bytes(500_000),))))
    group.barrier(PATIENCE)
    return notes.to_here(), sizes


def test_members_that_ray_has_placed(running_cluster: RayConnection) -> None:
    config = pparallel.RuntimeConfig(
        members=3,
        launcher=RayLauncherConfig(cluster=running_cluster),
        transport=RayTransportConfig(cluster=running_cluster),
        reducer={"backend": "local"},
    )
    for notes, sizes in pparallel.launch(config, talk, (50,)):
        assert sorted(notes) == sorted([*range(50)] * 3)
        assert sizes == [500_000] * 3
