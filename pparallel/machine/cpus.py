"""How many cores are there for this process."""

from __future__ import annotations

import math
import os
from pathlib import Path

from pparallel.machine import cgroups


def affinity() -> int:
    """Return how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_cpus(root: Path = cgroups.ROOT) -> int:
    """Return how many cores this process can keep busy.

    That is the time that its control groups allow, rounded up to whole cores, and at most the
    cores that it may run on.

    Args:
        root: the folder that holds ``proc`` and ``sys``.
    """
    cores, quota = affinity(), cgroups.cpu_quota(root)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def idle_cpus(load_average: str | Path = "/proc/loadavg") -> int:
    """Return how many of the cores that this process may run on nothing uses at this moment.

    Rather too few than too many: what runs on the machine's other cores counts as if it ran here.
    """
    try:
        with open(load_average, "rb", buffering=0) as load:
            running = int(load.read(64).split()[3].partition(b"/")[0])
    except OSError:  # not Linux
        return 0
    return max(0, affinity() - running)
