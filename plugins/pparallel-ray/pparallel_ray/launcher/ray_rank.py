"""A rank, as the process that launched it sees it."""

from __future__ import annotations

import threading
from collections import deque
from signal import SIGKILL, SIGTERM
from typing import Any

import ray
from typing_extensions import override

from pparallel.interfaces.launcher import RankSpec
from pparallel.runtime.processes import Exit

_LOG = 10  #: lines that are remembered, for the error if it dies


class RayRank:
    """The process of a rank, and the actor that looks after it. Any thread may use it.

    Attributes:
        spec: what it runs.
        name: what it is called.
        actor: its supervisor.
        node: Ray's id of its machine.
        host: the address of that machine.
        pid: its number there; 0: it has not started.
        log: the last lines that it logged.
        reported: whether it is known what came of it.
        returned: what it returned, in a tuple, once that is known.
    """

    def __init__(self, spec: RankSpec, actor: Any) -> None:
        self.spec, self.actor = spec, actor
        self.name = spec.name or f"rank-{spec.rank}"
        self.node, self.host, self.pid = "", "", 0
        self.log: deque[str] = deque(maxlen=_LOG)
        self.reported = False
        self.returned: tuple[object] | None = None
        self._over = threading.Event()
        self._code: int | None = None

    @property
    def exitcode(self) -> int | None:
        """Its exit code, or minus the number of the signal that ended it; None: not known (yet)."""
        return self._code

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return not self._over.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most *timeout* seconds."""
        self._over.wait(timeout)

    def listen(self) -> Any:
        """Return a reference to what is said of it next."""
        return self.actor.listen.remote()

    def tell(self, message: bytes) -> None:
        """Send it something; never waits."""
        if self.is_alive() and ray.is_initialized():
            self.actor.tell.remote(message)

    def signal(self, number: int) -> None:
        """Send it a signal; never waits, and nothing happens if it has ended."""
        if self.is_alive() and ray.is_initialized():
            self.actor.signal.remote(number)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.signal(SIGTERM)

    def kill(self) -> None:
        """End it by force."""
        self.signal(SIGKILL)

    def end_supervisor(self) -> None:
        """End its supervisor by force, and so itself; safe to call again."""
        if ray.is_initialized():
            ray.kill(self.actor)

    def conclude(self, end: Exit | None) -> None:
        """Take note that it has ended, and how."""
        self._code = None if end is None else end.code
        self._over.set()

    @override
    def __repr__(self) -> str:
        state = "running" if self.is_alive() else f"ended with {self._code}"
        return f"<{type(self).__name__} {self.name!r} {self.pid} at {self.host}, {state}>"
