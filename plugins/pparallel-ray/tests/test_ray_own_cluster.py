"""A few laws of each suite on a cluster that pparallel has started."""

from __future__ import annotations

import pytest
from pparallel_process import ProcessLauncherConfig
from typing_extensions import override

import pparallel
import ray_rank_programs as programs
from pparallel.interfaces.launcher import LauncherConfig
from pparallel_ray import RayLauncherConfig
from pparallel_ray.cluster import RayConnection
from ray_clusters import OnOwnCluster, only
from test_ray_launcher import RayLauncherSuite
from test_ray_ordered_server import RayServerSuite
from test_ray_pool import RayPoolSuite
from test_ray_transport import PRELOAD, RayTransportSuite


@only(
    "test_every_task_runs_once",
    "test_results_are_in_order",
    "test_imap_gives_all_results",
    "test_a_task_that_raises",
    "test_passes_copies",
    "test_all_workers_die_at_once",
    "test_a_dead_worker_is_replaced",
    "test_max_tasks",
    "test_terminate_ends_what_runs",
    "test_a_pool_in_a_task",
)
class TestPool(OnOwnCluster, RayPoolSuite):
    pass


@only(
    "test_every_call_is_answered_once",
    "test_remote_exceptions",
    "test_calls_in_a_circle",
    "test_one_slow_member_holds_up_no_other",
    "test_references",
    "test_groups",
    "test_barriers",
    "test_a_member_that_leaves",
    "test_nothing_waits_after_the_end",
)
class TestTransportAmongProcesses(OnOwnCluster, RayTransportSuite):
    """Members are processes."""

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=PRELOAD)


@only(
    "test_a_push_needs_the_newest_version",
    "test_holds_the_newest_versions",
    "test_what_is_stored_is_a_snapshot",
    "test_pulls_into",
    "test_large_values",
    "test_one_push_wakes_every_waiter",
    "test_nobody_waits_after_the_end",
    "test_threads_see_one_order",
    "test_members_share",
    "test_after_a_member_left",
)
class TestOrderedServer(OnOwnCluster, RayServerSuite):
    pass


@only(
    "test_each_rank_has_its_number_and_the_arguments",
    "test_each_rank_runs_once",
    "test_the_first_failure_is_raised",
    "test_join_with_a_timeout",
    "test_terminate",
    "test_ranks_of_a_job",
    "test_environment",
)
class TestLauncher(OnOwnCluster, RayLauncherSuite):
    pass


def test_a_rank_may_use_the_cluster_of_its_launcher(own_cluster: RayConnection) -> None:
    with pparallel.build(RayLauncherConfig(cluster=own_cluster)) as launcher:
        ((address, _),) = launcher.spawn(programs.use_ray, nprocs=1)
        assert address == launcher._cluster.address  # type: ignore[attr-defined]
