"""Our pools, opened as a user does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pparallel
from pparallel.interfaces.pool import Pool

WORKERS = 2


PRELOADING = ("process", "p2p")  #: backends whose workers may find modules imported


@contextmanager
def our_pool(backend: str, *preload: str) -> Iterator[Pool]:
    """A pool of an installed backend: its defaults, but for the modules that it is to preload."""
    options = {"preload": preload} if preload and backend in PRELOADING else {}
    with pparallel.build({"pool": {"backend": backend, "size": WORKERS, **options}}) as rt:
        yield rt.pool
