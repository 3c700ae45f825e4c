"""Starts the process of one worker, watches it, and tells the pool how it ended."""

from __future__ import annotations

import os
import selectors
import socket
from signal import SIGKILL

from pparallel.machine.threads import limit_threads
from pparallel.runtime import processes
from pparallel.runtime.pools.board import Board
from pparallel.runtime.pools.messages import Message
from pparallel_ray.pool.supervisor.limits import Limits
from pparallel_ray.pool.wire.channel import Channel
from pparallel_ray.pool.wire.orders import (
    ENDED,
    GROWN,
    KILL,
    MEASURE,
    PLACE,
    RECALL,
    SETTLE,
    Settings,
)

_WORKER = "pparallel_ray.pool.supervisor.worker"
_LOOK = 0.5  #: seconds between looks when no limit asks for more


class Supervisor:
    """Looks after one worker's process at a time, for as long as the pool is connected.

    Args:
        pool: the channel to the pool.
        selector: tells when something happens; its data is what is to be called.

    Attributes:
        is_over: the pool is gone.
    """

    def __init__(self, pool: Channel, selector: selectors.BaseSelector) -> None:
        self._pool = pool
        self._selector = selector
        self._settings: Settings | None = None
        self._process: processes.Process | None = None
        self._limits: Limits | None = None
        self._memory = Board.create(1)
        self._board = Board(self._memory)
        self.is_over = False
        selector.register(pool.fileno, selectors.EVENT_READ, self._listen)

    def due(self) -> float:
        """Return in how many seconds to look."""
        return _LOOK if self._limits is None else min(_LOOK, self._limits.due())

    def look(self) -> None:
        """See whether the worker is within its limits."""
        if self._limits is None or self._process is None:
            return
        if self._limits.is_late():
            self._process.signal(SIGKILL)
        if self._limits.has_grown():
            self._tell((GROWN,))

    def start(self, sock: socket.socket) -> None:
        """Start the worker's process, which talks to the pool over *sock*."""
        settings = self._settings
        with sock:
            if settings is None or self._process is not None:
                return
            self._board.clear(0)
            try:
                self._process = processes.start(
                    f"{_WORKER}:main",
                    b"",
                    [sock.fileno(), self._memory],
                    name=settings.name,
                    environment=_environment(settings),
                    preload=(_WORKER, *settings.preload),
                )
            except Exception as error:  # noqa: BLE001 - the pool is told
                why = f"{type(error).__name__}: {error}"
                self._tell((ENDED, 0, None, None, 0, 0, 0, False, why))
                return
        self._limits = Limits(self._process.pid, self._board, settings)
        self._selector.register(self._process.pidfd, selectors.EVENT_READ, self._bury)

    def close(self) -> None:
        """End the worker, and let go."""
        if self._process is not None:
            self._selector.unregister(self._process.pidfd)
            self._process.signal(SIGKILL)
            self._process.ended(None)
            self._process.close()
        self._selector.unregister(self._pool.fileno)
        self._pool.close()
        self._board.close()
        os.close(self._memory)

    def _listen(self) -> None:
        try:
            while (received := self._pool.receive()) is not None:
                self._obey(received[0])
        except EOFError:
            self.is_over = True

    def _obey(self, message: Message) -> None:
        kind, *content = message
        if kind == SETTLE:
            self._settings = Settings(*content)
        elif kind == KILL and self._process is not None:
            self._process.signal(SIGKILL)
        elif kind == MEASURE and self._limits is not None:
            self._limits.measure_from(*content)
        elif kind == RECALL:
            (lot,) = content
            self._board.recall(0, lot)
            self._tell((PLACE, lot, *self._board.place(0)))

    def _bury(self) -> None:
        process, limits = self._process, self._limits
        assert process is not None
        assert limits is not None
        self._selector.unregister(process.pidfd)
        end = process.ended()
        code, peak = (None, None) if end is None else end
        process.close()
        self._process = self._limits = None
        self._tell((ENDED, process.pid, code, peak, *self._board.place(0), limits.was_late, ""))

    def _tell(self, message: Message) -> None:
        try:
            self._pool.send(message)
        except OSError:
            self.is_over = True


def _environment(settings: Settings) -> dict[str, str]:
    found = {**processes.child_environment(), **settings.variables}
    if settings.threads is not None:
        found.update(limit_threads(settings.threads))
    return found
