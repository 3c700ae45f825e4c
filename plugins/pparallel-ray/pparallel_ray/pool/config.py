"""What the pool ``ray`` is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ByteSize, Field

from pparallel.interfaces.pool import PoolConfig
from pparallel.interfaces.serializer import SerializerConfig
from pparallel_ray.cluster.config import RayConnection

Strategy = Literal["pack", "spread", "strict_pack", "strict_spread"]


class RayPoolConfig(PoolConfig, frozen=True):
    """A pool whose workers are processes that Ray places on the machines of a cluster.

    Attributes:
        backend: selects this backend.
        cluster: the Ray cluster to use.
        num_cpus: CPUs that Ray reserves for each worker.
        num_gpus: GPUs that it reserves for each; a worker sees its own alone.
        resources: what else it reserves for each, by name.
        strategy: where workers go, for all of whom Ray reserves room at once. ``pack``: on as few
            machines as it can; ``spread``: on as many; ``strict_pack``: on one; ``strict_spread``:
            each on a machine of its own.
        runtime_env: what Ray prepares for the workers (``env_vars``, ``pip``, ...), as
            ``ray.remote`` takes it.
        start_timeout: seconds in which Ray must have found room for all workers, and have started
            what looks after them; else the pool's tasks fail with an error that says what is short.
        preload: modules that are imported once on each machine, so that every worker there has
            them at once.
        max_tasks: a worker is replaced after this many tasks.
        max_rss: a worker that has taken so many bytes of memory since it started, not counting
            what it shares, is replaced once it is idle; also with a unit, ``500MB``.
        task_timeout: seconds after which a running task fails with ``TaskTimeoutError`` and its
            worker is replaced.
        retries: how often a task is run again whose worker died.
        threads_per_worker: threads that OpenMP, BLAS and torch may use in each worker; ``None``:
            as many as ``num_cpus`` says.
        serializer: what turns functions, arguments and results into bytes; by default the
            runtime's.
    """

    backend: Literal["ray"] = "ray"
    cluster: RayConnection = RayConnection()
    num_cpus: float = Field(default=1, ge=0)
    num_gpus: float = Field(default=0, ge=0)
    resources: Mapping[str, float] = {}
    strategy: Strategy = "pack"
    runtime_env: Mapping[str, Any] = {}
    start_timeout: float = Field(default=60.0, gt=0)
    preload: tuple[str, ...] = ()
    max_tasks: int | None = Field(default=None, ge=1)
    max_rss: ByteSize | None = Field(default=None, gt=0)
    task_timeout: float | None = Field(default=None, gt=0)
    retries: int = Field(default=0, ge=0)
    threads_per_worker: int | None = Field(default=None, ge=1)
    serializer: SerializerConfig | None = None
