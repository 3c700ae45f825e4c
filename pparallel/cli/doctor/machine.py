"""Platform, cores, memory."""

from __future__ import annotations

import math
import multiprocessing
import os
import platform
import shutil
from pathlib import Path

from pparallel.cli.doctor.check import Check, size
from pparallel.machine import cgroups
from pparallel.machine import memory as machine_memory
from pparallel.machine.cpus import affinity

SHM = Path("/dev/shm")
ENOUGH_SHM = 512 * 2**20  #: bytes; Docker gives 64 MiB unless it is told otherwise
LITTLE = 0.1  #: share of a memory below which it counts as nearly used up


def system() -> list[Check]:
    """Look at the operating system and how it starts processes."""
    methods = multiprocessing.get_all_start_methods()  # the first is the default
    detail = f"{platform.platform()}; start methods {', '.join(methods)}"
    if platform.system() == "Linux":
        return [Check("platform", "ok", detail)]
    advice = "pparallel is tested on Linux; macOS works as far as its backends' libraries do"
    return [Check("platform", "warn", detail, advice)]


def cores(root: Path = cgroups.ROOT) -> list[Check]:
    """Look at how many cores there are and how many of them are for us."""
    return [judged_cores(os.cpu_count() or 1, affinity(), cgroups.cpu_quota(root))]


def judged_cores(present: int, usable: int, quota: float | None) -> Check:
    """Return what to think of so many cores.

    Args:
        present: what the machine has.
        usable: what this process may run on.
        quota: whose time it may use, from its control groups.
    """
    limit = "no quota" if quota is None else f"a quota of {quota:.4g}"
    detail = f"{present} present, {usable} usable, {limit}"
    if quota is None or quota >= usable:
        return Check("cores", "ok", detail)
    fit = max(1, math.floor(quota))
    advice = f"libraries count {usable} cores and start as many threads: set OMP_NUM_THREADS={fit}"
    return Check("cores", "warn", detail, advice)


def memory(root: Path = cgroups.ROOT) -> list[Check]:
    """Look at how much memory there is and how much of it is for us."""
    known = machine_memory.meminfo(root)
    limit = cgroups.memory_limit(root)
    return [judged_memory(known["MemTotal"], known["MemAvailable"], limit)]


def judged_memory(total: int, available: int, limit: tuple[int, int] | None) -> Check:
    """Return what to think of so much memory, in bytes; *limit* is that of groups, and its use."""
    detail = f"{size(available)} of {size(total)} available"
    if limit is None:
        detail += ", no limit"
    else:
        allowed, used = limit
        detail += f", a limit of {size(allowed)} with {size(used)} in use"
        if allowed < total:
            total, available = allowed, min(available, allowed - used)
    if available >= LITTLE * total:
        return Check("memory", "ok", detail)
    advice = "little is left: end other programs, or give this container or group more"
    return Check("memory", "warn", detail, advice)


def shared_memory(path: Path = SHM) -> list[Check]:
    """Look at the file system through which processes share memory."""
    if not path.is_dir():
        advice = "mount one (mount -t tmpfs shm /dev/shm): processes share tensors through it"
        return [Check("shared memory", "warn", f"there is no {path}", advice)]
    usage = shutil.disk_usage(path)
    return [judged_shared_memory(path, usage.total, usage.free)]


def judged_shared_memory(path: Path, total: int, free: int) -> Check:
    """Return what to think of so many bytes of shared memory."""
    detail = f"{path} has {size(free)} free of {size(total)}"
    if total < ENOUGH_SHM:
        advice = "make it larger: docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm"
        return Check("shared memory", "warn", detail, advice)
    if free < LITTLE * total:
        advice = f"look for what ended programs have left: ls -lh {path}"
        return Check("shared memory", "warn", detail, advice)
    return Check("shared memory", "ok", detail)
