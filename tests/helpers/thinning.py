"""What of the tests a run leaves out that is not at full scale, and what comes first.

The plugins' tests are a run of their own, which takes this module by ``-p thinning``: what Ray
leaves in a process, its threads above all, is nothing that a fork of it would survive.
"""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32

import pytest

FULL = os.environ.get("PPARALLEL_TEST_SCALE") == "full"
PLUGINS = Path(__file__).resolve().parents[2] / "plugins"

#: what takes longest comes first: of several processes none is left alone with it at the end
LONGEST = (
    "test_ray_launcher",
    "test_ray_transport",
    "test_ray_ordered_server",
    "test_ray_pool",
    "test_ray_transport_faults",
    "test_ray_cluster",
    "test_ray_digits",
    "test_ray_pool_deaths",
    "test_broken_backends",
    "test_torchrun",
    "test_examples",
    "test_moving",
    "test_anomalies",
    "test_benchmarks",
    "test_docs",
    "test_redis_faults",
    "test_redis_suite",
    "test_example_plugin",
    "test_linearizability",
    "test_pools",
    "test_process_pool_stress",
    "test_zmq_faults",
    "test_member_faults",
    "test_process_pool_ends",
    "test_process_pool_everywhere",
    "test_cli_live",
    "test_cli",
    "test_joblib",
    "test_gloo_jobs",
    "test_digits",
    "test_a3c_example",
    "test_torch_rpc",
    "test_gloo",
    "test_shm_collective",
    "test_process_launcher",
    "test_process_pool_engine",
    "test_process_pool_workers",
    "test_all_reduce_reducer",
    "test_launchers",
    "test_zmq_security",
    "test_zmq",
    "test_ipc",
    "test_collectives",
    "test_process_launcher_ends",
    "test_process_launcher_patterns",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
    if not FULL and all(Path(each).is_dir() for each in config.args):
        left_out = _left_out(items)
        items[:] = [each for each in items if each not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def _left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return seven in eight of the tests that are costly: at full scale, all are run.

    All of the plugins' are: they start engines of others. Of each class, and of each function's
    cases (of a plugin's file) at least one stays. Their names draw them, which mixes the
    parameters, and draws the same in every process of a run.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for each in items:
        if each.get_closest_marker("costly") or _is_of_a_plugin(each):
            groups.setdefault(_group(each), []).append(each)
    left_out: set[pytest.Item] = set()
    for group in groups.values():
        group.sort(key=lambda each: crc32(each.nodeid.encode()))
        left_out.update(group[(len(group) + 7) // 8 :])
    return left_out


def _group(item: pytest.Item) -> str:
    whole, _, last = item.nodeid.rpartition("::")
    if getattr(item, "cls", None) or _is_of_a_plugin(item):
        return whole
    return f"{whole}::{last.partition('[')[0]}"


def _is_of_a_plugin(item: pytest.Item) -> bool:
    return item.path.is_relative_to(PLUGINS)
