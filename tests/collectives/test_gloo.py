"""The collective ``gloo``: what it does itself; messages and objects are the job's transport's.

The law ``test_nothing_waits_after_the_end`` is in the soak: gloo forgets an operation whose
connection ends at the wrong moment, and leaves a thread that waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import preloads
import pytest
from gloo_among_threads import among_threads as among_threads
from selected_tests import only
from typing_extensions import override

from pparallel.interfaces.collective import CollectiveConfig
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.testing import CollectiveSuite
from pparallel_process import ProcessLauncherConfig
from pparallel_torch import GlooCollectiveConfig


@only(
    "test_operations",
    "test_multigpu_forms",
    "test_strides",
    "test_views",
    "test_unusual_forms",
    "test_unusual_dtypes",
    "test_tensors_that_cannot_be_sent",
    "test_outputs_that_share_memory",
    "test_inputs_that_share_memory",
    "test_tensors_of_several_shapes",
    "test_means_of_large_values",
    "test_large_tensors",
    "test_all_reduce_is_the_same_everywhere",
    "test_barrier",
    "test_what_arrives_is_its_own",
    "test_operations_overlap",
    "test_a_handle_is_not_done_before_its_operation",
    "test_groups",
    "test_groups_are_not_mixed",
    "test_a_group_that_was_destroyed",
    "test_a_lost_member",
    "test_close_wakes",
    "test_timeout",
    "test_wait_with_a_timeout",
)
@pytest.mark.usefixtures("among_threads")
class TestGlooAmongThreads(CollectiveSuite):
    sizes: ClassVar[Sequence[int]] = (1, 2, 5)

    @pytest.fixture
    @override
    def config(self) -> CollectiveConfig:
        return GlooCollectiveConfig()


@only(
    "test_operations",
    "test_operations_overlap",
    "test_groups",
    "test_objects",
    "test_tensors_of_several_shapes",
    "test_an_operation_that_does_not_fit",  # unchecked, gloo ends the process
    "test_a_lost_member",
)
@pytest.mark.usefixtures("among_threads")
class TestCheckedGloo(CollectiveSuite):
    sizes: ClassVar[Sequence[int]] = (3,)

    @pytest.fixture
    @override
    def config(self) -> CollectiveConfig:
        return GlooCollectiveConfig(check=True)


@only(
    "test_operations",
    "test_large_tensors",
    "test_barrier",
    "test_groups",
    "test_objects",
    "test_a_lost_member",
    "test_close_wakes",
)
class TestGlooAmongProcesses(CollectiveSuite):
    sizes: ClassVar[Sequence[int]] = (3,)

    @pytest.fixture
    @override
    def config(self) -> CollectiveConfig:
        return GlooCollectiveConfig()

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=preloads.MEMBERS)
