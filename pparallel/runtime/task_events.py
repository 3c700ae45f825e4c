"""The events of a pool's tasks."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from pparallel.interfaces.pool import Batch, Carry, Pool, Sink, name_of
from pparallel.runtime.events import (
    Events,
    TaskDone,
    TaskDropped,
    TaskEvent,
    TaskFailed,
    TaskQueued,
    TaskRetried,
    TaskStarted,
)

_numbers = itertools.count()


def watch_tasks(events: Events, pool: Pool, name: str) -> None:
    """Have *events* tell of the tasks of *pool*, from when somebody listens until nobody does.

    While nobody does the pool knows nothing of it, and is as quick as if it could not be watched.
    """

    def hand_over(carry: Carry, batch: Batch, sink: Sink) -> None:
        if not batch.items:
            carry(batch, sink)
            return
        observed = _ObservedSink(events, name, batch, sink)
        try:
            carry(batch, observed)
        except BaseException:
            observed.drop()
            raise

    events.follow(lambda: pool.observed_by(hand_over if events.wants(TaskEvent) else None))


class _ObservedSink(Sink):
    """Tells of each task before it passes the report on; each task ends once."""

    observed = True

    def __init__(self, events: Events, pool: str, batch: Batch, sink: Sink) -> None:
        self._emit, self._sink = events.emit, sink
        self.piecewise = sink.piecewise
        self._where = (events.member, pool, next(_numbers))
        self._lock = threading.Lock()
        self._open = set(range(len(batch.items)))
        self._emit(TaskQueued(*self._where, len(batch.items), name_of(batch.func)))

    @property
    @override
    def cancelled(self) -> bool:
        return self._sink.cancelled

    @override
    def begin(self) -> bool:
        begun = self._sink.begin()
        if not begun:
            self.drop()
        return begun

    @override
    def started(self, index: int, worker: str) -> None:
        self._emit(TaskStarted(*self._where, index, worker))

    @override
    def retried(self, index: int, error: BaseException) -> None:
        self._emit(TaskRetried(*self._where, index, error))

    @override
    def done(self, first: int, values: Sequence[Any]) -> None:
        for index in self._end(range(first, first + len(values))):
            self._emit(TaskDone(*self._where, index))
        self._sink.done(first, values)

    @override
    def failed(self, index: int, error: BaseException) -> None:
        for each in self._end([index]):
            self._emit(TaskFailed(*self._where, each, error))
        if not self.piecewise:
            self.drop()
        self._sink.failed(index, error)

    @override
    def abort(self, error: BaseException) -> None:
        for index in self._end():
            self._emit(TaskFailed(*self._where, index, error))
        self._sink.abort(error)

    def drop(self) -> None:
        """Tell that the tasks which have not ended are not wanted any more."""
        if left := len(self._end()):
            self._emit(TaskDropped(*self._where, left))

    def _end(self, tasks: Sequence[int] | None = None) -> list[int]:
        """Count *tasks*, by default all, as ended; return those that had not."""
        with self._lock:
            ended = sorted(self._open if tasks is None else self._open.intersection(tasks))
            self._open.difference_update(ended)
        return ended
