"""Tell what becomes of a pool's tasks."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from pparallel.interfaces.pool import Batch, Carry, Pool, Sink, name_of
from pparallel.runtime.events.kinds import (
    TaskDone,
    TaskDropped,
    TaskEvent,
    TaskFailed,
    TaskQueued,
    TaskRetried,
    TaskStarted,
)
from pparallel.runtime.events.stream import Events

_numbers = itertools.count()


def watch_tasks(events: Events, pool: Pool, name: str) -> None:
    """Have *events* tell of the tasks of *pool*, from when somebody listens until nobody does.

    While nobody does the pool knows nothing of it, and is as quick as if it could not be watched.
    """
    observer = _Observer(events, name)
    events.follow(lambda: pool.observed_by(observer if events.wants(TaskEvent) else None))


class _Observer:
    """Hands the batches of one pool over, with a sink that tells."""

    def __init__(self, events: Events, pool: str) -> None:
        self._events = events
        self._pool = pool

    def __call__(self, carry: Carry, batch: Batch, sink: Sink) -> None:
        """Pass *batch* to *carry*, with a sink that stands before *sink*."""
        if not batch.items:
            carry(batch, sink)
            return
        observed = _ObservedSink(self._events, self._pool, batch, sink)
        try:
            carry(batch, observed)
        except BaseException:
            observed.drop()
            raise


class _ObservedSink(Sink):
    """Tells of each task before it passes the report on; each task ends once."""

    observed = True

    def __init__(self, events: Events, pool: str, batch: Batch, sink: Sink) -> None:
        self._events, self._sink = events, sink
        self.piecewise = sink.piecewise
        self._where = (events.member, pool, next(_numbers))
        self._lock = threading.Lock()
        self._open = set(range(len(batch.items)))
        events.emit(TaskQueued(*self._where, len(batch.items), name_of(batch.func)))

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
        self._events.emit(TaskStarted(*self._where, index, worker))

    @override
    def retried(self, index: int, error: BaseException) -> None:
        self._events.emit(TaskRetried(*self._where, index, error))

    @override
    def done(self, first: int, values: Sequence[Any]) -> None:
        for index in range(first, first + len(values)):
            if self._ends(index):
                self._events.emit(TaskDone(*self._where, index))
        self._sink.done(first, values)

    @override
    def failed(self, index: int, error: BaseException) -> None:
        if self._ends(index):
            self._events.emit(TaskFailed(*self._where, index, error))
        if not self.piecewise:
            self.drop()
        self._sink.failed(index, error)

    @override
    def abort(self, error: BaseException) -> None:
        with self._lock:
            left, self._open = sorted(self._open), set()
        for index in left:
            self._events.emit(TaskFailed(*self._where, index, error))
        self._sink.abort(error)

    def _ends(self, index: int) -> bool:
        with self._lock:
            is_open = index in self._open
            self._open.discard(index)
            return is_open

    def drop(self) -> None:
        """Say that the tasks which have not ended are not wanted any more."""
        with self._lock:
            left, self._open = len(self._open), set()
        if left:
            self._events.emit(TaskDropped(*self._where, left))
