"""The pool below joblib's backend: one that was given, or one that is built as needed."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from typing_extensions import override

from pparallel.builder import build, load
from pparallel.errors import ConfigError
from pparallel.interfaces.pool import Pool, PoolConfig
from pparallel.registry import default_registry


class Workers(ABC):
    """Where the pool comes from.

    Attributes:
        share_memory: tasks see the caller's own objects.
    """

    share_memory: bool

    @abstractmethod
    def size(self) -> int:
        """Return how many workers ``n_jobs=-1`` stands for."""

    @abstractmethod
    def at_most(self, n_jobs: int) -> int:
        """Return how many of *n_jobs* there may be."""

    @abstractmethod
    def ready(self, n_jobs: int, threads: int | None) -> Pool:
        """Return a pool that is open; *threads* is what BLAS may use in each worker."""

    @abstractmethod
    def abort(self) -> None:
        """End running tasks if that is possible and nobody else's."""

    @abstractmethod
    def end(self) -> None:
        """Release what was built; safe to call again."""


class GivenWorkers(Workers):
    """A pool that somebody else opens and closes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.share_memory = "references" in _features_of(pool)

    @override
    def size(self) -> int:
        return self._pool.size()

    @override
    def at_most(self, n_jobs: int) -> int:
        return min(n_jobs, self._pool.size())

    @override
    def ready(self, n_jobs: int, threads: int | None) -> Pool:
        if threads is not None:
            message = (
                "inner_max_num_threads cannot apply to a pool that is there already:"
                " build the pool with threads_per_worker, or give its config"
            )
            raise ConfigError(message)
        return self._pool

    @override
    def abort(self) -> None:
        """Leave running tasks alone: the pool is used by others too."""

    @override
    def end(self) -> None:
        """Leave the pool open."""


class BuiltWorkers(Workers):
    """A pool built from its config, again when another number of jobs is wanted."""

    def __init__(self, source: PoolConfig | Mapping[str, Any] | str) -> None:
        raw = {"backend": source} if isinstance(source, str) else source
        self._config = raw if isinstance(raw, PoolConfig) else load(PoolConfig, raw)
        backend = default_registry().find("pool", self._config.backend)
        self.share_memory = "references" in backend.features
        self._pool: Pool | None = None
        self._built: PoolConfig | None = None
        self._scope = ExitStack()

    @override
    def size(self) -> int:
        return self._config.workers

    @override
    def at_most(self, n_jobs: int) -> int:
        config = self._config
        fixed = config.size is not None or config.worker_contexts
        return min(n_jobs, config.workers) if fixed else n_jobs

    @override
    def ready(self, n_jobs: int, threads: int | None) -> Pool:
        config = self._wanted(n_jobs, threads)
        if self._pool is None or config != self._built:
            self.end()
            pool: Pool = build(config)
            self._pool = self._scope.enter_context(pool)
            self._built = config
        return self._pool

    @override
    def abort(self) -> None:
        if self._pool is not None:
            self._pool.terminate()
        self.end()

    @override
    def end(self) -> None:
        scope, self._scope, self._pool = self._scope, ExitStack(), None
        with contextlib.suppress(RuntimeError):  # a worker, whose garbage we are, cannot join
            scope.close()

    def _wanted(self, n_jobs: int, threads: int | None) -> PoolConfig:
        config, changes = self._config, {}
        if config.size is None and not config.worker_contexts:
            changes["size"] = n_jobs
        takes = "threads_per_worker" in type(config).model_fields
        if threads is not None and not takes:
            message = f"workers of pool {config.backend!r} share the threads of their process"
            raise ConfigError(f"{message}: inner_max_num_threads is for pool 'process'")
        if takes and threads:
            changes["threads_per_worker"] = threads
        return config.model_copy(update=changes)


def _features_of(pool: Pool) -> frozenset[str]:
    """Return the features of the backend that *pool* is an instance of."""
    registry = default_registry()
    classes = {f"{each.__module__}:{each.__qualname__}" for each in type(pool).__mro__}
    for offer in registry.offers():
        if offer.interface == "pool" and offer.status == "available":
            backend = registry.find("pool", offer.name)
            if backend.target in classes:
                return backend.features
    return frozenset()
