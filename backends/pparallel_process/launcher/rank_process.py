"""A rank, as the process that launched it sees it."""

from __future__ import annotations

import threading
from collections import deque
from signal import SIGKILL, SIGTERM
from typing import Any

from typing_extensions import override

from pparallel.interfaces.launcher import RankSpec
from pparallel.runtime.pools.messages import Received
from pparallel.runtime.processes import Exit, Process
from pparallel.runtime.processes.inheritance import no_fork, remember_in_children
from pparallel_process.wire.channel import Channel

_GONE = 5.0  #: seconds that a process may take to be gone once it was killed
_LOG = 10  #: lines that are remembered, for the error if it dies


class RankProcess:
    """The process of a rank. Any thread may use it.

    Attributes:
        spec: what it runs.
        name: what it is called.
        pid: its number.
        pidfd: is readable once it has ended.
        fileno: the descriptor on which it says something.
        log: the last lines that it logged.
        reported: whether it is known what came of it.
        returned: what it returned, in a tuple, once that is known.
    """

    def __init__(self, spec: RankSpec, process: Process, channel: Channel) -> None:
        self.spec, self.name, self.pid = spec, process.name, process.pid
        self.pidfd, self.fileno = process.pidfd, channel.fileno
        self.log: deque[str] = deque(maxlen=_LOG)
        self.reported = False
        self.returned: tuple[object] | None = None
        self._process, self._channel = process, channel
        self._telling = threading.Lock()
        self._over = threading.Event()
        self._code: int | None = None

    @property
    def exitcode(self) -> int | None:
        """Its exit code, or minus the number of the signal that ended it; None while it runs."""
        return self._code

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return not self._over.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most *timeout* seconds."""
        self._over.wait(timeout)

    def receive(self) -> Received | None:
        """Return what it says next; ``None``: nothing yet.

        Raises:
            EOFError: it says nothing more.
        """
        return self._channel.receive()

    def tell(self, *messages: tuple[Any, ...]) -> None:
        """Tell it the first of *messages* that is not too long; never waits."""
        with self._telling:
            if self.is_alive():
                any(self._channel.try_to_send(each) for each in messages)

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens if it has ended."""
        self._process.signal(number)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.signal(SIGTERM)

    def kill(self) -> None:
        """End it by force."""
        self.signal(SIGKILL)

    def conclude(self) -> Exit | None:
        """Give back what there was for it, now that it has ended; return how it did."""
        end = self._process.ended(0)
        with self._telling:
            with no_fork():
                remember_in_children(self.fileno)
                self._channel.close()
            self._process.close()
            self._code = None if end is None else end.code
            self._over.set()
        return end

    def bury(self) -> None:
        """Wait for the end of one that was killed before anybody watched it."""
        self._process.ended(_GONE)
        self.conclude()

    @override
    def __repr__(self) -> str:
        state = "running" if self.is_alive() else f"ended with {self._code}"
        return f"<{type(self).__name__} {self.name!r} {self.pid}, {state}>"
