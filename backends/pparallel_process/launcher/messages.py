"""What a rank is told as it starts, and the first field of what it is told later."""

from __future__ import annotations

from typing import NamedTuple

from pparallel_process.wire.outset import Papers

STOP = 0


class Start(NamedTuple):
    """What a rank is told as it starts.

    Attributes:
        rank: its number.
        name: what it is called.
        serializer: pickled.
        call: the head of the cargo that holds what it runs, a function and the arguments behind
            the rank.
        papers: what goes with the call.
        hears: what the rank tells is wanted.
        prints: what it prints is wanted, and is not just written.
        threads: how many threads libraries may use; ``None``: as many as they like.
        forwarding: which logs and warnings are wanted.
        depth: how deep in other ranks and tasks of pools it is.
    """

    rank: int
    name: str
    serializer: bytes
    call: bytes
    papers: Papers
    hears: bool
    prints: bool
    threads: int | None
    forwarding: bytes
    depth: int
