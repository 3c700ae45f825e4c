"""Batches that are dealt to the workers in turn."""

from __future__ import annotations

from collections.abc import Iterator

from pparallel.interfaces.pool import Batch, Sink
from pparallel.runtime.pools.functions import Function
from pparallel.runtime.pools.jobs import Job


class DealtJobs:
    """A batch of which each worker gets its share, in turn."""

    def __init__(self, batch: Batch, sink: Sink, function: Function) -> None:
        self._batch = batch
        self._sink = sink
        self._function = function
        self._begun: bool | None = None

    def parts(self, tasks: int, workers: int) -> Iterator[Job]:
        """Return the shares of the workers that get one, in the order of their turns."""
        for turn in range(min(tasks, workers)):
            part = Job(self._batch, self._sink, self._function, range(turn, tasks, workers))
            part.asks = self._begin
            yield part

    def _begin(self) -> bool:
        if self._begun is None:
            self._begun = self._sink.begin()
        return self._begun
