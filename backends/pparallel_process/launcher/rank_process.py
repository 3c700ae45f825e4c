"""The process of a rank that was started on this machine."""

from __future__ import annotations

import threading
from typing import Any

from typing_extensions import override

from pparallel.interfaces.launcher import RankSpec
from pparallel.runtime.pools.messages import Received
from pparallel.runtime.processes import Exit, Process
from pparallel.runtime.processes.inheritance import no_fork, remember_in_children
from pparallel.runtime.ranks.rank import Rank
from pparallel_process.wire.channel import Channel

_GONE = 5.0  #: seconds that a process may take to be gone once it was killed


class RankProcess(Rank):
    """The process of a rank, and the channel to it. Any thread may use it.

    Attributes:
        pidfd: is readable once it has ended.
        fileno: the descriptor on which it says something.
        lent: memory that it may share with this process, kept until it has ended.
    """

    def __init__(self, spec: RankSpec, process: Process, channel: Channel) -> None:
        super().__init__(spec, process.pid)
        self.pidfd, self.fileno = process.pidfd, channel.fileno
        self._process, self._channel = process, channel
        self._telling = threading.Lock()
        self.lent: list[object] = []

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

    @override
    def signal(self, number: int) -> None:
        self._process.signal(number)

    def conclude(self) -> Exit | None:
        """Give back what there was for it, now that it has ended; return how it did."""
        end = self._process.ended(0)
        with self._telling:
            with no_fork():
                remember_in_children(self.fileno)
                self._channel.close()
            self._process.close()
            self.lent = []
            self.has_ended(end)
        return end

    def bury(self) -> None:
        """Wait for the end of one that was killed before anybody watched it."""
        self._process.ended(_GONE)
        self.conclude()
