"""What waits for the workers: batches of tasks on their way through the pool."""

from __future__ import annotations

from collections import deque

from pparallel.interfaces.pool import Batch, Sink
from pparallel.runtime.pools.functions import Function


class Job:
    """A batch on its way through the pool.

    Attributes:
        batch: the tasks.
        sink: where they are reported.
        function: what they call.
        left: tasks that have not been reported.
        begun: whether it was asked if its first task may start.
        asks: asks that.
        tries: how often tasks were run again, by index.
    """

    __slots__ = (
        "asks",
        "batch",
        "begun",
        "function",
        "left",
        "pending",
        "sink",
        "tries",
        "waiting",
    )

    def __init__(self, batch: Batch, sink: Sink, function: Function, tasks: range) -> None:
        self.batch = batch
        self.sink = sink
        self.function = function
        self.left = len(tasks)
        self.begun = False
        self.asks = sink.begin
        self.tries: dict[int, int] = {}
        #: tasks to be sent: those given back first
        self.pending: deque[range] = deque((tasks,))
        self.waiting = len(tasks)

    @property
    def is_call(self) -> bool:
        """Whether it is one call, which may travel together with others."""
        batch = self.batch
        return batch.style == "call" and len(batch.items) == 1 and not self.sink.observed

    @property
    def is_prompt(self) -> bool:
        """Whether each result is wanted as soon as it is there."""
        sink = self.sink
        return sink.piecewise or sink.observed or sink.prompt

    def take(self, most: int) -> range:
        """Return tasks to be sent, next to one another, at most so many."""
        first = self.pending[0]
        if len(first) <= most:
            self.pending.popleft()
            taken = first
        else:
            taken, self.pending[0] = first[:most], first[most:]
        self.waiting -= len(taken)
        return taken

    def give_back(self, tasks: range) -> None:
        """Have *tasks*, which were not started, sent again, before the others."""
        if len(tasks):
            self.pending.appendleft(tasks)
            self.waiting += len(tasks)

    def begin(self) -> bool:
        """Return whether its tasks may start."""
        if not self.begun:
            self.begun = True
            return self.asks()
        return not self.sink.cancelled

    def drop(self) -> int:
        """Let no more of its tasks be sent; return how many that were."""
        dropped, self.waiting = self.waiting, 0
        self.pending.clear()
        self.left -= dropped
        return dropped
