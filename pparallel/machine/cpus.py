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


def are_crowded(load_average: str | Path = "/proc/loadavg") -> bool:
    """Return whether more threads want to run at this moment than this process has cores.

    What runs on the machine's other cores counts too: where they are not this process's, the
    answer is rather yes than no.
    """
    try:
        with open(load_average, "rb", buffering=0) as load:
            running = int(load.read(64).split()[3].partition(b"/")[0])
    except OSError:  # not Linux
        return True
    return running > affinity()


def idle_share() -> float:
    """Return the share of the machine's cores that nobody wanted in the last minute."""
    load, _, _ = os.getloadavg()
    return max(0.0, 1 - load / (os.cpu_count() or 1))
