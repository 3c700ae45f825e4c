"""Configs of the process pools and of the launcher."""

from __future__ import annotations

from typing import Literal

from pydantic import ByteSize, Field

from pparallel.interfaces.launcher import LauncherConfig, StartMethod
from pparallel.interfaces.pool import PoolConfig
from pparallel.interfaces.serializer import SerializerConfig

ShareTensors = Literal["copy", "cpu", "cuda"]


class IsolatedPoolConfig(PoolConfig, frozen=True):
    """What both process pools are told.

    Attributes:
        start_method: how workers start: ``forkserver`` forks them from a small server process
            that has imported little; ``spawn`` starts an interpreter for each; ``fork`` copies
            this process with all its memory, which is not safe when it has threads.
        preload: modules that the fork server imports before it forks, so that every worker has
            them at once.
        max_tasks: a worker is replaced after this many tasks.
        max_rss: a worker that has taken so many bytes of memory since it started, not counting
            what it shares, is replaced once it is idle; also with a unit, ``500MB``.
        task_timeout: seconds after which a running task fails with ``TaskTimeoutError`` and its
            worker is replaced.
        retries: how often a task is run again whose worker died.
        threads_per_worker: threads that OpenMP, BLAS and torch may use in each worker; ``None``:
            its share of the cores, or what ``OMP_NUM_THREADS`` says.
        share_tensors: ``copy``: a tensor that arrives is the receiver's own. ``cpu``: CPU tensors
            are moved into shared memory and passed by reference, ``cuda``: CUDA tensors by CUDA
            IPC; each side then sees the other's writes.
        warm_memory: bytes of freed memory that a worker keeps while it is busy, since fresh
            memory is slow; given back when it is idle.
        serializer: what turns functions, arguments and results into bytes; by default the
            runtime's.
    """

    start_method: Literal["forkserver", "spawn", "fork"] = "forkserver"
    preload: tuple[str, ...] = ()
    max_tasks: int | None = Field(default=None, ge=1)
    max_rss: ByteSize | None = Field(default=None, gt=0)
    task_timeout: float | None = Field(default=None, gt=0)
    retries: int = Field(default=0, ge=0)
    threads_per_worker: int | None = Field(default=None, ge=1)
    share_tensors: ShareTensors = "copy"
    warm_memory: ByteSize = Field(default=ByteSize(256 << 20), ge=0)
    serializer: SerializerConfig | None = None


class ProcessPoolConfig(IsolatedPoolConfig, frozen=True):
    """A pool of processes; a task goes to whichever worker is idle.

    Attributes:
        backend: the name of the backend.
    """

    backend: Literal["process"] = "process"


class P2PPoolConfig(IsolatedPoolConfig, frozen=True):
    """A pool of processes to which tasks are dealt in turn, each over its own channel.

    What was dealt to a worker that is held up by a long task is done by one that is idle.

    Attributes:
        backend: the name of the backend.
    """

    backend: Literal["p2p"] = "p2p"


class ProcessLauncherConfig(LauncherConfig, frozen=True):
    """A launcher whose ranks are processes of this machine.

    Attributes:
        backend: the name of the backend.
        start_method: how the members of a job start (``spawn`` is told by its argument):
            ``forkserver`` forks them from a small server process that has imported little;
            ``spawn`` starts an interpreter for each; ``fork`` copies this process with all its
            memory, which is not safe when it has threads.
        preload: modules that the fork server imports before it forks, so that every rank has them
            at once.
        threads_per_rank: threads that OpenMP, BLAS and torch may use in each rank; ``None``: its
            share of the cores, or what ``OMP_NUM_THREADS`` says, here or in the rank's own
            environment.
        serializer: what turns functions, arguments and results into bytes; by default the
            runtime's.
    """

    backend: Literal["process"] = "process"
    start_method: StartMethod = "forkserver"
    preload: tuple[str, ...] = ()
    threads_per_rank: int | None = Field(default=None, ge=1)
    serializer: SerializerConfig | None = None
