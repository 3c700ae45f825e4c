"""``jactorch.parallel.comm``: a master gathers a message of each slave and answers all."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from typing_extensions import override

import pparallel.patterns as native

__all__ = ["SlavePipe", "SyncMaster"]

PATIENCE = 600.0  #: seconds that participants wait for one another; as long as torch's NCCL does


class SlavePipe(NamedTuple):
    """A slave's end of its connection with the master.

    Attributes:
        identifier: what the slave is called in the callback.
        queue: takes the slave's messages, as ``put((identifier, msg))``.
        result: gives the master's answer to each, by ``get()``.
    """

    identifier: Any
    queue: Any
    result: Any

    def run_slave(self, msg: Any) -> Any:
        """Send *msg* to the master and return its answer to this slave.

        Raises:
            Exception: what the callback raised.
            PeerLostError: another participant failed or is gone.
            CallTimeoutError: some did not come in time; the message names them.
        """
        self.queue.put((self.identifier, msg))
        answer = self.result.get()
        self.queue.put(True)  # taken
        return answer


class _Way:
    """A slave's pipe as the queue and the result of jactorch's: sends when an answer is asked for.

    It goes when the last pipe that has it does, and that tells the others.
    """

    def __init__(self, pipe: native.SlavePipe) -> None:
        self._pipe = pipe
        self._messages: deque[Any] = deque()

    def put(self, item: Any) -> None:
        if item is not True:
            self._messages.append(item[1])

    def get(self) -> Any:
        return self._pipe.run_slave(self._messages.popleft())


class SyncMaster:
    """The master, which slaves of the same process register with.

    In a round the master calls :meth:`run_master` and each slave :meth:`SlavePipe.run_slave`. The
    callback is given ``[(0, master_msg), (identifier, msg), ...]``, the slaves sorted by
    identifier, and returns a result for each in the same shape, the master's first. A failing or
    missing participant wakes all, with an error that names it.

    Source: jactorch.parallel.comm, and Synchronized-BatchNorm-PyTorch.

    Args:
        master_callback: turns the messages of a round into its results.
        timeout: seconds that participants wait for one another; ``None`` for no limit.
    """

    def __init__(
        self,
        master_callback: Callable[[list[tuple[Any, Any]]], Any],
        *,
        timeout: float | None = PATIENCE,
    ) -> None:
        self._master = native.SyncMaster(master_callback, timeout=timeout)

    @property
    def nr_slaves(self) -> int:
        """The number of slaves that are registered."""
        return self._master.nr_slaves

    def register_slave(self, identifier: Any) -> SlavePipe:
        """Return the pipe of a new slave; after a round this begins a new set of slaves.

        Args:
            identifier: usually the number of its device; anything but 0 that can be hashed and
                sorted with the others.

        Raises:
            ValueError: it is taken.
            TypeError: it cannot be hashed, or not be sorted with the others.
        """
        way = _Way(self._master.register_slave(identifier))
        return SlavePipe(identifier, way, way)

    def run_master(self, master_msg: Any) -> Any:
        """Run a round with *master_msg* as the master's message, and return its own result.

        Raises:
            Exception: what the callback raised; otherwise as :meth:`SlavePipe.run_slave`.
        """
        return self._master.run_master(master_msg)

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.nr_slaves} slaves)"
