"""The pool on Ray."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from typing_extensions import override

from pparallel.interfaces.pool import Batch, Pool, Sink
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.member import Member
from pparallel.runtime.streams import Streams
from pparallel_ray.pool.config import RayPoolConfig
from pparallel_ray.pool.engine import Engine


class RayPool(Pool):
    """Processes on the machines of a Ray cluster; a task goes to whichever is idle."""

    def __init__(
        self,
        config: RayPoolConfig,
        *,
        member: Member,
        serializer: Serializer,
        name: str,
        streams: Streams,
    ) -> None:
        self._config = config
        title = name if member.world_size == 1 else f"{member.name}-{name}"
        self._engine = Engine(config, repr(self), title, serializer, streams)
        self._is_open = False

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            warnings.warn(f"{self!r} was not closed", ResourceWarning, 2, source=self)
            self._engine.terminate()
            self._engine.join()

    @override
    def size(self) -> int:
        return self._config.workers

    @override
    def open(self) -> None:
        self._engine.open()
        self._is_open = True

    @override
    def close(self) -> None:
        self._engine.close()

    @override
    def join(self) -> None:
        self._engine.join()
        self._is_open = False

    @override
    def terminate(self) -> None:
        self._engine.terminate()

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        self._engine.carry(batch, sink)

    @override
    def attend(
        self,
        ready: Callable[[], bool],
        wait: Callable[[float | None], object],
        timeout: float | None,
    ) -> None:
        self._engine.attend(ready, wait, timeout)

    def pids(self) -> list[int]:
        """Return the process ids of the workers that run now, each on its own machine."""
        return self._engine.pids()
