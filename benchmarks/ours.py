"""Our pools, opened as a user does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pparallel
from pparallel.interfaces.pool import Pool

WORKERS = 2
OURS = ("process", "p2p")  #: backends whose options we know


@contextmanager
def our_pool(backend: str, *preload: str, **options: object) -> Iterator[Pool]:
    """A pool of an installed backend: its defaults, but for what is named.

    Args:
        backend: its name.
        preload: modules that its workers find imported; of no meaning to other backends.
        options: its other options; of no meaning to other backends either.
    """
    known = {**({"preload": preload} if preload else {}), **options} if backend in OURS else {}
    with pparallel.build({"pool": {"backend": backend, "size": WORKERS, **known}}) as rt:
        yield rt.pool
