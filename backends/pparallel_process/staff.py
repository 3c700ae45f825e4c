"""A worker as the pool sees it, and how it is started and ended."""

from __future__ import annotations

import contextlib
import marshal
import os
import pickle
import signal
from collections import deque
from collections.abc import Mapping
from time import monotonic
from typing import Any

from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import processes
from pparallel.runtime.processes import Process
from pparallel.runtime.shm import Arena, Parcels
from pparallel.runtime.streams import Streams
from pparallel_process import forwarding, nesting
from pparallel_process.channel import Channel, pair
from pparallel_process.config import IsolatedPoolConfig
from pparallel_process.jobs import JobQueue, Lot
from pparallel_process.worker import Start

_LOG = 5  #: lines of a worker's log that are shown when it is lost
_WORKER = "pparallel_process.worker"


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
        is_ready: it has started.
        is_being_filled: a thread is about to send it a lot.
        is_retiring: it gets nothing more.
        is_gone: it has ended, or is taken to have.
        doom: why it was ended by force.
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
        self.is_ready = self.is_being_filled = self.is_retiring = self.is_gone = False
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


class Recruiter:
    """Starts the workers of one pool.

    Args:
        config: the pool's.
        name: what the pool is called.
        serializer: the pool's.
        streams: the pool's random streams, of which each worker gets its own.
        arena: where the pool puts what it sends; ``None``: there is none.
        board: descriptor of the board.
    """

    def __init__(
        self,
        config: IsolatedPoolConfig,
        name: str,
        serializer: Serializer,
        streams: Streams,
        arena: Arena | None,
        board: int,
    ) -> None:
        self._config = config
        self._name = name
        self._serializer = serializer
        self._streams = streams
        self._arena = arena
        self._board = board
        self._environment: Mapping[str, str] | None = None
        if config.threads_per_worker is not None:
            limits = processes.limit_threads(config.threads_per_worker)
            self._environment = {**processes.child_environment(), **limits}

    def start(self, number: int, queue: JobQueue) -> Worker:
        """Start the process of worker *number*; it says itself when it is ready.

        Raises:
            OSError: there are no descriptors, no memory, or no process to be had.
            SerializationError: the initializer or its arguments cannot be sent.
        """
        config, name = self._config, f"{self._name}-worker-{number}"
        prepared = (config.initializer, config.initargs, config.context(number))
        start = Start(
            number,
            name,
            pickle.dumps(self._serializer),
            [bytes(each) for each in self._serializer.dumps(prepared)],
            pickle.dumps(self._streams.sub("worker", number)),
            config.threads_per_worker,
            int(config.warm_memory),
            config.share_tensors != "copy",
            forwarding.settings(),
            nesting.depth(),
            None if self._arena is None else self._arena.usage().budget,
        )
        here, there = pair()
        dumps = -1
        try:
            dumps = os.memfd_create("pparallel-stacks", os.MFD_CLOEXEC)
            fds = [there.fileno(), self._board, dumps]
            fds += [self._arena.fd] if self._arena is not None else []
            process = processes.start(
                f"{_WORKER}:main",
                marshal.dumps(tuple(start)),
                fds,
                method=config.start_method,
                name=name,
                environment=self._environment,
                preload=(_WORKER, type(self._serializer).__module__, *config.preload),
            )
        except BaseException:
            here.close()
            if dumps >= 0:
                os.close(dumps)
            raise
        finally:
            there.close()
        channel_parcels = Parcels(self._arena, {})
        return Worker(
            number,
            name,
            process,
            Channel(here, channel_parcels),
            channel_parcels,
            queue,
            dumps=dumps,
            keeps=config.share_tensors != "copy",
        )

    def welcome(self, worker: Worker, arena: int) -> None:
        """Attach to the arena of a worker that has started, whose descriptor is closed then."""
        try:
            worker.arena = Arena.attach(arena)
        finally:
            os.close(arena)
        number = 0 if self._arena is None else 1
        worker.parcels = Parcels(self._arena, {number: worker.arena})
        worker.channel.use(worker.parcels)


def end(workers: list[Worker], patience: float) -> None:
    """End *workers*: ask, then SIGTERM after *patience* seconds, then SIGKILL."""
    deadline = monotonic() + patience
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            for each in workers:
                if each.process.ended(0) is None:
                    each.process.signal(number)
            deadline = monotonic() + 1.0
        for each in workers:
            _drain_until_ended(each, deadline)
        if all(each.process.ended(0) is not None for each in workers):
            return


def _drain_until_ended(worker: Worker, deadline: float) -> None:
    """Wait for a worker to end, and have room in its channel for what it says last."""
    while worker.process.ended(0.02) is None and monotonic() < deadline:
        with contextlib.suppress(EOFError):
            while (received := worker.channel.receive()) is not None:
                for each in received[1]:
                    os.close(each)
