"""A client that is a process, as whoever directs a run sees it."""

from __future__ import annotations

import pickle
import signal
import socket
from collections.abc import Iterable
from typing import Any

from pparallel.config import BackendConfig
from pparallel.registry import default_registry
from pparallel.runtime import processes
from pparallel.testing.linearizability.client import Opening, Wire
from pparallel.testing.linearizability.plan import Part

PRELOAD = ("pparallel.builder", "numpy", "pparallel.testing.linearizability.warm")


class ClientProcess:
    """A client in a process of its own, which may be killed and stopped.

    Attributes:
        name: its name.
        is_killed: whether it was sent ``SIGKILL``.
        is_lost: whether it has said that its server is gone.
    """

    def __init__(
        self, name: str, opening: Opening, patience: float, preload: Iterable[str]
    ) -> None:
        self.name = name
        self.is_killed = self.is_lost = False
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._wire = Wire(self._channel)
        with theirs:
            self._process = processes.start(
                "pparallel.testing.linearizability.client:run",
                pickle.dumps((opening, patience)),
                [theirs.fileno()],
                name=name,
                preload=(*PRELOAD, *preload),
            )

    def fileno(self) -> int:
        """Return what is readable when it has told something, or has ended."""
        return self._channel.fileno()

    def play(self, part: Part) -> None:
        """Have it do its part."""
        self._wire.tell(part)

    def told(self) -> tuple[Any, ...] | None:
        """Return the next that it told, waiting for it; ``None``: it has ended."""
        try:
            message = self._wire.told()
        except ConnectionResetError:  # it was killed before it had read what it was told
            message = None
        if message and message[0] == "failed":
            error = f"client {self.name} failed: {message[1]}"
            raise AssertionError(error)
        if message and message[0] == "lost":
            self.is_lost = True
        return message

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.is_killed |= number == signal.SIGKILL
        self._process.signal(number)

    @property
    def is_there(self) -> bool:
        """Whether it may play a part."""
        return not (self.is_killed or self.is_lost)

    def finish(self) -> None:
        """Tell it that there is no more to do."""
        self._channel.shutdown(socket.SHUT_WR)

    def ended(self, timeout: float) -> bool:
        """Wait until it has ended."""
        return self._process.ended(timeout) is not None

    def close(self) -> None:
        """Kill it if it still runs, and forget it."""
        self._process.signal(signal.SIGKILL)
        self._process.ended(None)
        self._process.close()
        self._channel.close()


def modules(*configs: BackendConfig[Any]) -> list[str]:
    """Return the modules of the backends that these configs name."""
    registry = default_registry()
    records = [registry.find(each.interface, each.backend) for each in configs]
    return [each.target.partition(":")[0] for each in records]
