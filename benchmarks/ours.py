"""Our pools, opened as a user does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pparallel
from pparallel.interfaces.pool import Pool

WORKERS = 2


@contextmanager
def our_pool(backend: str, workers: int = WORKERS) -> Iterator[Pool]:
    """A pool of an installed backend, with its defaults."""
    with pparallel.build({"pool": {"backend": backend, "size": workers}}) as rt:
        yield rt.pool
