"""What waits for the workers: batches of tasks, and how lots are cut from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from typing_extensions import override

from pparallel.interfaces.pool import Batch, Sink, Style
from pparallel_process.functions import Function


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


class Lot(ABC):
    """Tasks that were sent to a worker together.

    Attributes:
        number: larger than that of every lot before.
        function: what its first task calls; all have the same pace.
        style: how items are applied.
        size: how many tasks it has.
        reported: how many of them, the first ones, the worker has told of.
        limit: how many of them, the first ones, are the worker's to run: the others were recalled.
        sent: when it was sent.
    """

    __slots__ = ("function", "limit", "number", "reported", "sent", "size", "style")

    def __init__(self, function: Function, style: Style, size: int) -> None:
        self.number = 0
        self.function = function
        self.style = style
        self.size = self.limit = size
        self.reported = 0
        self.sent = 0.0

    def described(self, place: int) -> str:
        """Return what the task at *place* is called in messages."""
        job, index = self.task(place)
        name = job.function.name
        return name if len(job.batch.items) == 1 else f"{name}, task {index}"

    @abstractmethod
    def jobs(self) -> Iterator[Job]:
        """Return the jobs whose tasks it has."""

    @abstractmethod
    def task(self, place: int) -> tuple[Job, int]:
        """Return the job of the task at *place*, and the task's index in it."""

    @abstractmethod
    def items(self) -> Sequence[Any]:
        """Return what the tasks work on."""

    @abstractmethod
    def cut(self, size: int) -> None:
        """Be without the tasks from place *size* on; it was not sent yet."""

    @abstractmethod
    def give_back(self, first: int, end: int) -> None:
        """Give the tasks at the places from *first* to before *end* back to their jobs."""

    @abstractmethod
    def done(self, first: int, values: Sequence[Any]) -> None:
        """Report the values of the tasks from place *first* on."""

    def count(self, first: int, end: int) -> None:
        """Note that the tasks from *first* to before *end* are reported."""
        for place in range(first, end):
            self.task(place)[0].left -= 1


class MapLot(Lot):
    """Tasks of one job."""

    __slots__ = ("_tasks", "job")

    def __init__(self, job: Job, tasks: range) -> None:
        super().__init__(job.function, job.batch.style, len(tasks))
        self.job = job
        self._tasks = tasks

    @override
    def jobs(self) -> Iterator[Job]:
        return iter((self.job,))

    @override
    def task(self, place: int) -> tuple[Job, int]:
        return self.job, self._tasks[place]

    @override
    def items(self) -> Sequence[Any]:
        items, tasks = self.job.batch.items, self._tasks
        chosen = items[tasks.start : tasks.stop : tasks.step]
        if self.style == "call":
            return [_call(self.function, each) for each in chosen]
        return chosen

    @override
    def cut(self, size: int) -> None:
        self._tasks = self._tasks[:size]
        self.size = self.limit = size

    @override
    def give_back(self, first: int, end: int) -> None:
        self.job.give_back(self._tasks[first:end])

    @override
    def done(self, first: int, values: Sequence[Any]) -> None:
        tasks, done = self._tasks, self.job.sink.done
        if tasks.step == 1:
            done(tasks.start + first, values)
        else:
            for place, value in enumerate(values, first):
                done(tasks[place], (value,))

    @override
    def count(self, first: int, end: int) -> None:
        self.job.left -= end - first


class CallLot(Lot):
    """Single calls that were handed over one by one."""

    __slots__ = ("_calls",)

    def __init__(self, calls: list[Job]) -> None:
        super().__init__(calls[0].function, "call", len(calls))
        self._calls = calls

    @override
    def jobs(self) -> Iterator[Job]:
        return iter(self._calls)

    @override
    def task(self, place: int) -> tuple[Job, int]:
        return self._calls[place], 0

    @override
    def items(self) -> Sequence[Any]:
        return [_call(each.function, each.batch.items[0]) for each in self._calls]

    @override
    def cut(self, size: int) -> None:
        del self._calls[size:]
        self.size = self.limit = size

    @override
    def give_back(self, first: int, end: int) -> None:
        for each in self._calls[first:end]:
            each.give_back(range(1))

    @override
    def done(self, first: int, values: Sequence[Any]) -> None:
        for job, value in zip(self._calls[first:], values, strict=False):
            job.sink.done(0, (value,))


class JobQueue:
    """Jobs in the order in which they were handed over, for one worker or for several.

    Args:
        workers: how many workers take from it.
        dropped: told of jobs of which nothing more will be sent, for nobody wants it.
    """

    def __init__(self, workers: int, dropped: Callable[[Job], None]) -> None:
        self._workers = workers
        self._dropped = dropped
        self._jobs: deque[Job] = deque()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def append(self, job: Job) -> None:
        """Have *job* done after those before it."""
        self._jobs.append(job)

    def give_back(self, lot: Lot, first: int, end: int) -> None:
        """Have the tasks of *lot* at these places, which did not start, done before all others."""
        if first >= end:
            return
        lot.give_back(first, end)
        jobs = dict.fromkeys(lot.task(place)[0] for place in range(first, end))
        for job in reversed(jobs):
            if job not in self._jobs:
                self._jobs.appendleft(job)

    def take(self, *, most: int, idle: bool) -> Lot | None:
        """Return tasks to send to a worker, if there are some for it.

        Args:
            most: how many tasks the worker may run.
            idle: it has nothing to do; otherwise nobody may watch the tasks.
        """
        jobs = self._jobs
        while jobs:
            job = jobs[0]
            if not job.waiting or not job.begin():
                jobs.popleft()
                self._drop(job)
                continue
            if job.sink.observed:
                if not idle:
                    return None
                return MapLot(job, self._taken(job, 1))
            pace = job.function.pace
            if job.is_call:
                return self._calls(min(most, pace.lot(len(jobs), self._workers, 1)))
            size = pace.lot(job.waiting, self._workers, job.batch.chunksize or 1)
            return MapLot(job, self._taken(job, min(most, size)))
        return None

    def take_over(self, other: JobQueue) -> None:
        """Have what waits in *other* done, after what waits here."""
        self._jobs.extend(other._jobs)
        other._jobs.clear()

    def clear(self) -> None:
        """Forget all jobs."""
        self._jobs.clear()

    def _drop(self, job: Job) -> None:
        job.drop()
        self._dropped(job)

    def _taken(self, job: Job, most: int) -> range:
        taken = job.take(most)
        if not job.waiting:
            self._jobs.popleft()
        return taken

    def _calls(self, most: int) -> CallLot:
        jobs, calls = self._jobs, [self._jobs.popleft()]
        calls[0].take(1)
        pace = calls[0].function.pace
        while len(calls) < most and jobs and jobs[0].is_call and jobs[0].function.pace is pace:
            job = jobs.popleft()
            if job.waiting and job.begin():
                job.take(1)
                calls.append(job)
            else:
                self._drop(job)
        return CallLot(calls)


def _call(function: Function, item: Any) -> tuple[Any, ...]:
    args, kwargs = item
    return (function.number, args, kwargs) if kwargs else (function.number, args)
