"""What a worker is told as it starts."""

from __future__ import annotations

from typing import NamedTuple

from pparallel_process.wire.outset import Papers


class Start(NamedTuple):
    """What a worker is told as it starts.

    Attributes:
        number: the worker's place in the pool.
        name: what it is called.
        serializer: the pool's, pickled.
        preparation: what to do before the first task, serialised.
        papers: what goes with that.
        streams: its random streams, pickled.
        threads: how many threads libraries may use.
        warm: bytes of freed memory to keep while busy.
        keeps: results must be kept until the pool has them, for they go by reference.
        forwarding: which logs and warnings the pool wants.
        depth: how deep in the tasks of other pools it is.
        budget: bytes of shared memory that its results may take.
    """

    number: int
    name: str
    serializer: bytes
    preparation: list[bytes]
    papers: Papers
    streams: bytes
    threads: int | None
    warm: int
    keeps: bool
    forwarding: bytes
    depth: int
    budget: int | None
