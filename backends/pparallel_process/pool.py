"""Process pools: workers are processes of this machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import ClassVar

from typing_extensions import override

from pparallel.errors import ConfigError
from pparallel.interfaces.pool import Batch, Pool, Sink
from pparallel.interfaces.pool.results import Publishing
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.member import Member
from pparallel.runtime.streams import Streams
from pparallel_process.config import IsolatedPoolConfig
from pparallel_process.engine.engine import Engine
from pparallel_process.telling.insights import Insights
from pparallel_process.wire.outset import SharesTensors


class ProcessPool(Pool):
    """Processes; a task goes to whichever is idle."""

    dealt: ClassVar[bool] = False

    def __init__(
        self,
        config: IsolatedPoolConfig,
        *,
        member: Member,
        serializer: Serializer,
        name: str,
        streams: Streams,
    ) -> None:
        self._config = config
        if config.share_tensors != "copy":
            serializer = _sharing(serializer, config.share_tensors)
        title = name if member.world_size == 1 else f"{member.name}-{name}"
        self._publishing = publishing = Publishing()
        self._engine = Engine(
            config, repr(self), title, serializer, streams, publishing, dealt=self.dealt
        )
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

    def insights(self) -> Insights:
        """Return where the time of the workers went, and the slowest tasks; its text is a table."""
        return self._engine.insights()

    def stacks(self) -> dict[str, str]:
        """Return what each worker, by name, is doing: its Python stacks, whatever it does."""
        return self._engine.stacks()

    def pids(self) -> list[int]:
        """Return the process ids of the workers that run now."""
        return self._engine.pids()


class P2PPool(ProcessPool):
    """Processes to which tasks are dealt in turn, each over its own channel.

    What was dealt to a worker that is held up is done by one that has nothing to do.
    """

    dealt = True


def _sharing(serializer: Serializer, device: str) -> Serializer:
    if not isinstance(serializer, SharesTensors):
        message = (
            f"{type(serializer).__name__} cannot pass tensors by reference: with share_tensors"
            f" {device!r} the pool's serializer is dill, pickle or cloudpickle"
        )
        raise ConfigError(message, path="share_tensors")
    return serializer.sharing(device)
