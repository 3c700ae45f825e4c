from __future__ import annotations

import os
from pathlib import Path

import pytest
from made_up_files import write

from pparallel.machine import cgroups, cpus, memory
from pparallel_local import ThreadPoolConfig

GIB = 2**30


# -- control groups -------------------------------------------------------------------------------


def test_no_groups(tmp_path: Path) -> None:
    assert cgroups.cpu_quota(tmp_path) is None
    assert cgroups.memory_limit(tmp_path) is None


def test_version_two(tmp_path: Path) -> None:
    write(
        tmp_path,
        proc__self__cgroup="0::/jobs/mine",
        sys__fs__cgroup__jobs__mine__cpu_dot_max="max 100000",
        sys__fs__cgroup__jobs__cpu_dot_max="150000 100000",
        sys__fs__cgroup__jobs__mine__memory_dot_max=str(4 * GIB),
        sys__fs__cgroup__jobs__mine__memory_dot_current=str(GIB),
        sys__fs__cgroup__jobs__memory_dot_max="max",
    )
    assert cgroups.cpu_quota(tmp_path) == 1.5
    assert cgroups.memory_limit(tmp_path) == (4 * GIB, GIB)


def test_version_two_in_a_container_with_the_hosts_path(tmp_path: Path) -> None:
    write(
        tmp_path,
        proc__self__cgroup="0::/../../kubepods/pod7",
        sys__fs__cgroup__cpu_dot_max="200000 100000",
        sys__fs__cgroup__memory_dot_max=str(GIB),
    )
    assert cgroups.cpu_quota(tmp_path) == 2
    assert cgroups.memory_limit(tmp_path) == (GIB, 0)


def test_version_one(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/docker/abc"
    write(
        tmp_path,
        proc__self__cgroup="5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/",
        **{
            f"{folder}/cpu_dot_cfs_quota_us": "50000",
            f"{folder}/cpu_dot_cfs_period_us": "100000",
            "sys/fs/cgroup/cpu,cpuacct/cpu_dot_cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/cpu_dot_cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory_dot_limit_in_bytes": str(2 * GIB),
            "sys/fs/cgroup/memory/memory_dot_usage_in_bytes": "77",
        },
    )
    assert cgroups.cpu_quota(tmp_path) == 0.5
    assert cgroups.memory_limit(tmp_path) == (2 * GIB, 77)


def test_version_one_without_limits(tmp_path: Path) -> None:
    write(
        tmp_path,
        proc__self__cgroup="5:cpu:/\n4:memory:/",
        sys__fs__cgroup__cpu__cpu_dot_cfs_quota_us="-1",
        sys__fs__cgroup__memory__memory_dot_limit_in_bytes="9223372036854771712",
    )
    assert cgroups.cpu_quota(tmp_path) is None
    assert cgroups.memory_limit(tmp_path) is None


def test_what_files_have_in_memory_is_not_in_use(tmp_path: Path) -> None:
    """The kernel gives it up as soon as somebody needs the memory."""
    two, one = tmp_path / "two", tmp_path / "one"
    write(
        two,
        proc__self__cgroup="0::/",
        sys__fs__cgroup__memory_dot_max=str(4 * GIB),
        sys__fs__cgroup__memory_dot_current=str(4 * GIB),
        sys__fs__cgroup__memory_dot_stat=f"anon 5\nactive_file {GIB}\ninactive_file {2 * GIB}\n",
    )
    stat = f"active_file 7\ntotal_active_file {GIB}\ntotal_inactive_file {GIB}\n\nodd"
    write(
        one,
        proc__self__cgroup="4:memory:/",
        sys__fs__cgroup__memory__memory_dot_limit_in_bytes=str(4 * GIB),
        sys__fs__cgroup__memory__memory_dot_usage_in_bytes=str(4 * GIB),
        sys__fs__cgroup__memory__memory_dot_stat=stat,
    )
    assert cgroups.memory_limit(two) == (4 * GIB, GIB)
    assert cgroups.memory_limit(one) == (4 * GIB, 2 * GIB)


# -- cores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quota", "affinity", "usable"),
    [("max", 4, 4), ("10000", 4, 1), ("150000", 4, 2), ("200000", 4, 2), ("900000", 4, 4)],
)
def test_usable_cores_are_the_quota_rounded_up_within_the_affinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, affinity: int, usable: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    write(tmp_path, proc__self__cgroup="0::/", sys__fs__cgroup__cpu_dot_max=f"{quota} 100000")
    assert cpus.usable_cpus(tmp_path) == usable


def test_a_pool_is_as_large_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "cpu_quota", lambda root: 0.3)
    assert ThreadPoolConfig().workers == 1
    assert ThreadPoolConfig(size=3).workers == 3


# -- memory ---------------------------------------------------------------------------------------


def test_memory_of_the_machine(tmp_path: Path) -> None:
    text = "MemTotal:       8388608 kB\nMemAvailable:   4194304 kB\nHugePages_Total:       0"
    write(tmp_path, proc__meminfo=text)
    assert (memory.total(tmp_path), memory.available(tmp_path)) == (8 * GIB, 4 * GIB)


@pytest.mark.parametrize(
    ("limit", "used", "available"), [(2, 1, 1), (2, 2, 0), (1, 2, 0), (6, 1, 4), (16, 1, 4)]
)
def test_memory_within_a_limit(tmp_path: Path, limit: int, used: int, available: int) -> None:
    write(
        tmp_path,
        proc__meminfo="MemTotal: 8388608 kB\nMemAvailable: 4194304 kB",
        proc__self__cgroup="0::/",
        sys__fs__cgroup__memory_dot_max=str(limit * GIB),
        sys__fs__cgroup__memory_dot_current=str(used * GIB),
    )
    assert memory.total(tmp_path) == min(8, limit) * GIB
    assert memory.available(tmp_path) == available * GIB


def test_memory_left_within_several_limits(tmp_path: Path) -> None:
    """The group with the lowest limit need not be the one that has least left."""
    write(
        tmp_path,
        proc__meminfo="MemTotal: 8388608 kB\nMemAvailable: 4194304 kB",
        proc__self__cgroup="0::/jobs/mine",
        sys__fs__cgroup__jobs__memory_dot_max=str(6 * GIB),
        sys__fs__cgroup__jobs__memory_dot_current=str(5 * GIB),
        sys__fs__cgroup__jobs__mine__memory_dot_max=str(3 * GIB),
        sys__fs__cgroup__jobs__mine__memory_dot_current="0",
    )
    assert memory.total(tmp_path) == 3 * GIB
    assert memory.available(tmp_path) == GIB
