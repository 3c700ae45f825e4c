"""A process that has few descriptors left."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def few_descriptors(spare: int = 0) -> Iterator[None]:
    """Leave this process only so many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The lowest free numbers are the next ones: what lies above them is taken already, or counts.
    taken = {int(each) for each in os.listdir("/proc/self/fd")}
    free = (each for each in range(soft) if each not in taken)
    limit = [next(free) for _ in range(spare + 1)][-1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
