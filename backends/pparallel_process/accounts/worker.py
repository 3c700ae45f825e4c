"""A worker as the pool sees it."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

from pparallel.runtime.pools.job_queue import JobQueue
from pparallel.runtime.pools.lots import Lot
from pparallel.runtime.processes import Process
from pparallel.runtime.shm import Arena, Parcels
from pparallel_process.wire.channel import Channel

_LOG = 5  #: lines of a worker's log that are shown when it is lost


class Worker:
    """One worker's process and what it was given.

    Attributes:
        number: its place in the pool.
        name: what it is called.
        process: its process.
        channel: to it.
        parcels: what large data goes to it and comes from it in.
        queue: where its tasks wait.
        dumps: descriptor of the file into which it dumps its stacks.
        lots: what it was sent and has not ended, by number, in order.
        heads: of each lot, the parcels that it may not have taken.
        known: the functions that it has.
        forgotten: functions that it need not keep.
        keeps: it keeps results until it is told that they were received.
        arena: where it puts what it sends; ``None``: there is none, or it has not started.
        tasks: how many tasks it was given.
        served: it has ended a lot.
        baseline: bytes of memory that it had when it had started.
        is_ready: it has started.
        is_being_filled: a thread is about to send it a lot.
        is_retiring: it gets nothing more.
        is_gone: it has ended, or is taken to have.
        doom: why it was ended by force.
        untold: how many of its reports have arrived and were not passed on.
        unthanked: how many of its results have arrived and it was not told of.
        log: the last lines of its log.
        checked: when its memory was last looked at.
        left: when it was let go.
    """

    def __init__(
        self,
        number: int,
        name: str,
        process: Process,
        channel: Channel,
        parcels: Parcels,
        queue: JobQueue,
        *,
        dumps: int,
        keeps: bool,
    ) -> None:
        self.number = number
        self.name = name
        self.process = process
        self.channel = channel
        self.queue = queue
        self.parcels = parcels
        self.dumps = dumps
        self.keeps = keeps
        self.arena: Arena | None = None
        self.lots: dict[int, Lot] = {}
        self.heads: dict[int, list[Any]] = {}
        self.known: set[int] = set()
        self.forgotten: list[int] = []
        self.tasks = 0
        self.served = False
        self.baseline = 0
        self.is_ready = self.is_being_filled = self.is_retiring = self.is_gone = False
        self.untold = self.unthanked = 0
        self.doom: BaseException | None = None
        self.log: deque[str] = deque(maxlen=_LOG)
        self.checked = self.left = 0.0

    def own_memory(self) -> int:
        """Return how many bytes of memory it has that it does not share; 0: unknown."""
        try:
            with open(f"/proc/{self.process.pid}/statm") as file:
                _, resident, shared, *_ = map(int, file.read().split())
        except (OSError, ValueError):
            return 0
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")

    def release(self) -> None:
        """Give its descriptors back, once it has ended."""
        self.channel.close()
        self.process.close()
        if self.arena is not None:
            self.arena.close()
        if self.dumps >= 0:
            os.close(self.dumps)
            self.dumps = -1
