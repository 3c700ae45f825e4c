"""A rank, as the process that launched it sees it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from signal import SIGKILL, SIGTERM

from typing_extensions import override

from pparallel.interfaces.launcher import RankSpec
from pparallel.runtime.processes import Exit

_LOG = 10  #: lines that are remembered, for the error if it dies


class Rank(ABC):
    """The process of a rank. Any thread may use it.

    Attributes:
        spec: what it runs.
        name: what it is called.
        pid: its number; 0: it has not started.
        log: the last lines that it logged.
        reported: whether it is known what came of it.
        returned: what it returned, in a tuple, once that is known.
        exitcode: its exit code, or minus the number of the signal that ended it; None: not known
            (yet).
    """

    def __init__(self, spec: RankSpec, pid: int = 0) -> None:
        self.spec, self.pid = spec, pid
        self.name = spec.name or f"rank-{spec.rank}"
        self.log: deque[str] = deque(maxlen=_LOG)
        self.reported = False
        self.returned: tuple[object] | None = None
        self._over = threading.Event()
        self.exitcode: int | None = None

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return not self._over.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most *timeout* seconds."""
        self._over.wait(timeout)

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send it a signal; never waits, and nothing happens if it has ended."""

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.signal(SIGTERM)

    def kill(self) -> None:
        """End it by force."""
        self.signal(SIGKILL)

    def has_ended(self, end: Exit | None) -> None:
        """Take note that it has ended, and how; ``None``: nobody knows."""
        self.exitcode = None if end is None else end.code
        self._over.set()

    def described(self) -> str:
        """Return what errors call it."""
        return f"rank {self.spec.rank}" + (f" ({self.spec.name})" if self.spec.name else "")

    @override
    def __repr__(self) -> str:
        state = "running" if self.is_alive() else f"ended with {self.exitcode}"
        return f"<{type(self).__name__} {self.name!r} {self.pid}, {state}>"
