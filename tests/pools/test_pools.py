from __future__ import annotations

import pytest
from typing_extensions import override

from pparallel.interfaces.pool import PoolConfig
from pparallel.testing import PoolSuite
from pparallel.testing.pool.base import PoolTests
from pparallel_local import SerialPoolConfig, ThreadPoolConfig
from pparallel_process import P2PPoolConfig, ProcessPoolConfig

#: imported by the fork server, once: the suite's tasks live beside its tests, which need pytest
PRELOAD = ("numpy", "torch", "pparallel.testing.pool.tasks")


class TestSerialPool(PoolSuite):
    sequences = 8

    @pytest.fixture
    @override
    def config(self) -> PoolConfig:
        return SerialPoolConfig()


class TestThreadPool(PoolSuite):
    sequences = 8

    @pytest.fixture
    @override
    def config(self) -> PoolConfig:
        return ThreadPoolConfig()


class TestProcessPool(PoolSuite):
    sequences = 4

    @pytest.fixture
    @override
    def config(self) -> PoolConfig:
        return ProcessPoolConfig(preload=PRELOAD)


class TestP2PPool(PoolTests):
    """A dozen laws: all else is the same code as that of the process pool."""

    @pytest.fixture
    @override
    def config(self) -> PoolConfig:
        return P2PPoolConfig(preload=PRELOAD)

    test_every_task_runs_once = PoolSuite.test_every_task_runs_once
    test_results_are_in_order = PoolSuite.test_results_are_in_order
    test_tasks_overlap = PoolSuite.test_tasks_overlap
    test_imap_is_bounded = PoolSuite.test_imap_is_bounded
    test_cancel_before_the_start = PoolSuite.test_cancel_before_the_start
    test_a_task_that_raises = PoolSuite.test_a_task_that_raises
    test_close_stops_intake_only = PoolSuite.test_close_stops_intake_only
    test_terminate_wakes_those_who_wait = PoolSuite.test_terminate_wakes_those_who_wait
    test_nothing_starts_twice = PoolSuite.test_nothing_starts_twice
    test_what_was_reported_stays = PoolSuite.test_what_was_reported_stays
    test_retries = PoolSuite.test_retries
    test_a_task_that_takes_too_long = PoolSuite.test_a_task_that_takes_too_long
    test_max_tasks = PoolSuite.test_max_tasks
