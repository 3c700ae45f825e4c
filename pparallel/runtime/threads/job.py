"""The tasks of one batch, as threads run them."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from pparallel.interfaces.pool import NO_SINK
from pparallel.runtime.future import ended_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from pparallel.interfaces.pool import Batch, Sink
    from pparallel.runtime.threads.slot import Slot

#: of a job: nothing, tasks that other threads run, or tasks to start
Remains = Literal["nothing", "running", "tasks"]


def below(error: BaseException) -> BaseException:
    """Return *error* as that of a task, without the caller's own frame.

    That would keep the sink alive.
    """
    return ended_by(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))


class SingleJob:
    """A batch of one task: one thread takes it up, once.

    Attributes:
        sink: where the tasks are reported.
    """

    __slots__ = ("_batch", "sink")

    def __init__(self, batch: Batch, sink: Sink) -> None:
        self._batch = batch
        self.sink = sink

    def abort(self, error: BaseException) -> None:
        """Let no more tasks start, and fail all that has not been reported."""
        self.sink.abort(error)  # which refuses to begin then

    def work(self, slot: Slot) -> Remains:
        """Run tasks until none are left to start, or another thread wants the slot.

        Returns:
            What remains; ``nothing`` when all tasks have been reported.
        """
        if self.sink.begin():
            if self.sink.observed:
                self.sink.started(0, slot.name)
            try:
                value = self._batch.bound(*slot.context)(self._batch.items[0])
            except BaseException as error:  # noqa: BLE001 - reported to the task's caller
                self.sink.failed(0, below(error))
            else:
                self.sink.done(0, (value,))
        self.sink = NO_SINK  # the frames of a task that raised know this one
        return "nothing"


class SharedJob(SingleJob):
    """A batch whose tasks any number of threads take one by one.

    They share one iterator of indices, which the interpreter advances atomically: no lock is
    taken per task.
    """

    __slots__ = (
        "_active",
        "_begun",
        "_ended",
        "_exhausted",
        "_indices",
        "_lock",
        "_results",
        "_whole",
    )

    def __init__(self, batch: Batch, sink: Sink) -> None:
        super().__init__(batch, sink)
        size = len(batch.items)
        self._indices = iter(range(size))
        self._whole = not (sink.piecewise or sink.prompt or sink.observed)
        self._results: list[Any] = [None] * size if self._whole else []
        self._lock = threading.Lock()
        self._active = 0  # threads at it
        self._begun = self._exhausted = self._ended = False

    @property
    def exhausted(self) -> bool:
        """Whether there are no more tasks to start."""
        return self._exhausted

    @override
    def abort(self, error: BaseException) -> None:
        sink = self.sink  # before: the job has none once nothing of it is left
        self.drain()
        sink.abort(error)

    def drain(self) -> None:
        """Let no more tasks start."""
        self._whole = False  # first: who finds no more tasks must not take the results for whole
        deque(self._indices, maxlen=0)

    @override
    def work(self, slot: Slot) -> Remains:
        exhausted = not self._take_up() or self._run(slot)
        if not self._put_down(exhausted=exhausted):
            return "running" if exhausted else "tasks"
        if self._whole:
            self.sink.done(0, self._results)
        self.sink = NO_SINK  # the pool's queue may hold this job for a while
        self._results = []
        return "nothing"

    def _take_up(self) -> bool:
        with self._lock:
            if not self._begun:
                self._begun = True
                self._exhausted = not self.sink.begin()
                if self._exhausted:
                    self._whole = False
            self._active += 1
            return not self._exhausted

    def _put_down(self, *, exhausted: bool) -> bool:
        """Return whether all tasks have ended; true once."""
        with self._lock:
            self._active -= 1
            self._exhausted = self._exhausted or exhausted
            if self._active or self._ended or not self._exhausted:
                return False
            self._ended = True
            return True

    def _run(self, slot: Slot) -> bool:
        call = self._batch.bound(*slot.context)
        return self._run_all(slot, call) if self._whole else self._run_each(slot, call)

    def _run_all(self, slot: Slot, call: Callable[[Any], Any]) -> bool:
        items, results, index = self._batch.items, self._results, 0
        try:
            for index in self._indices:
                results[index] = call(items[index])
                if slot.threads > 1:
                    return False
        except BaseException as error:  # noqa: BLE001 - reported to the task's caller
            self.drain()
            self.sink.failed(index, below(error))
        return True

    def _run_each(self, slot: Slot, call: Callable[[Any], Any]) -> bool:
        items, sink = self._batch.items, self.sink
        try:
            for index in self._indices:
                if sink.observed:
                    sink.started(index, slot.name)
                try:
                    value = call(items[index])
                except BaseException as error:  # noqa: BLE001 - reported to the task's caller
                    if not sink.piecewise:
                        self.drain()
                    sink.failed(index, below(error))
                else:
                    sink.done(index, (value,))
                    del value
                if slot.threads > 1:
                    return False
            return True
        finally:
            del sink  # the frames of a task that raised know this one
