"""How a worker is started, and how workers are ended."""

from __future__ import annotations

import marshal
import os
import pickle
import signal
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic

from pparallel.errors import ClosedError, SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel.machine.threads import limit_threads
from pparallel.runtime import processes
from pparallel.runtime.pools import forwarding, nesting
from pparallel.runtime.pools.job_queue import JobQueue
from pparallel.runtime.pools.messages import FORWARDED
from pparallel.runtime.shm import Arena, Parcels
from pparallel.runtime.streams import Streams
from pparallel_process import shares
from pparallel_process.accounts.worker import Worker
from pparallel_process.config import IsolatedPoolConfig
from pparallel_process.wire.channel import Channel, pair
from pparallel_process.wire.outset import Outset
from pparallel_process.wire.start import Start

_WORKER = "pparallel_process.worker"


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
        self._threads = shares.threads(config.threads_per_worker, config.workers, {})
        if self._threads is not None:
            limits = limit_threads(self._threads)
            self._environment = {**processes.child_environment(), **limits}

    def start(self, number: int, queue: JobQueue) -> Worker:
        """Start the process of worker *number*; it says itself when it is ready.

        Raises:
            OSError: there are no descriptors, no memory, or no process to be had.
            SerializationError: the initializer or its arguments cannot be sent.
        """
        config, name = self._config, f"{self._name}-worker-{number}"
        prepared = (config.initializer, config.initargs, config.context(number))
        if config.start_method == "fork" and config.initializer is not None:
            # A fork has all globals: the state of those that the initializer uses counts as sent.
            with suppress(SerializationError):
                self._serializer.dumps(config.initializer)
        with Outset(prepared, self._serializer, config.start_method) as outset:
            start = Start(
                number,
                name,
                pickle.dumps(self._serializer),
                [bytes(each) for each in outset.buffers],
                outset.papers,
                pickle.dumps(self._streams.sub("worker", number)),
                self._threads,
                int(config.warm_memory),
                self._serializer.lends,
                forwarding.settings(),
                nesting.depth(),
                None if self._arena is None else self._arena.usage().budget,
            )
            return self._started(start, outset.files, queue)

    def _started(self, start: Start, files: list[int], queue: JobQueue) -> Worker:
        config, name = self._config, start.name
        here, there = pair()
        dumps = -1
        try:
            dumps = os.memfd_create("pparallel-stacks", os.MFD_CLOEXEC)
            fds = [there.fileno(), self._board, dumps]
            fds += [self._arena.fd] if self._arena is not None else []
            process = processes.start(
                f"{_WORKER}:main",
                marshal.dumps(tuple(start)),
                [*fds, *files],
                method=config.start_method,
                name=name,
                environment=self._environment,
                preload=(_WORKER, type(self._serializer).__module__, *config.preload),
            )
            process.warns = False  # the pool does
        except BaseException:
            here.close()
            if dumps >= 0:
                os.close(dumps)
            raise
        finally:
            there.close()
        channel_parcels = Parcels(self._arena, {})
        return Worker(
            start.number,
            name,
            process,
            Channel(here, channel_parcels),
            channel_parcels,
            queue,
            dumps=dumps,
            keeps=start.keeps,
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
                if not _has_ended(each, 0):
                    each.process.signal(number)
            deadline = monotonic() + 1.0
        for each in workers:
            _drain_until_ended(each, deadline)
        if all(_has_ended(each, 0) for each in workers):
            return


def _drain_until_ended(worker: Worker, deadline: float) -> None:
    """Wait for a worker to end, and take in what it says last."""
    while not _has_ended(worker, 0.02) and monotonic() < deadline:
        _hear(worker)
    _hear(worker)


def _has_ended(worker: Worker, timeout: float) -> bool:
    try:
        return worker.process.ended(timeout) is not None
    except ClosedError:  # it is garbage together with its pool, and was finalised first
        return True


def _hear(worker: Worker) -> None:
    """Take in what *worker* has said, of which nothing but what it logged matters any more."""
    while (received := worker.channel.poll()) is not None:
        message, files = received
        for each in files:
            os.close(each)
        if message[0] == FORWARDED:
            worker.log.append(forwarding.replay(message[1], worker.name))
