"""How many threads the libraries of one of several processes may use."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pparallel.machine.cpus import usable_cpus


def threads(asked: int | None, processes: int, own: Mapping[str, str]) -> int | None:
    """Return how many; ``None``: as many as they like.

    Args:
        asked: how many the config says; ``None``: a share of the cores.
        processes: how many share the cores.
        own: variables that the process gets beside those of this one.
    """
    if asked is not None:
        return asked
    cores = usable_cpus()
    share = max(1, cores // processes)
    told = "OMP_NUM_THREADS" in os.environ or "OMP_NUM_THREADS" in own
    return None if share == cores or told else share
