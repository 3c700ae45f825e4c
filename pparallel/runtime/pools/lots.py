"""Lots: tasks that are sent to a worker together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import override

from pparallel.interfaces.pool import Style
from pparallel.runtime.pools.functions import Function
from pparallel.runtime.pools.jobs import Job


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

    def failed(self, error: BaseException) -> None:
        """Report that all tasks have failed."""
        for place in range(self.size):
            job, index = self.task(place)
            job.sink.failed(index, error)

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


def _call(function: Function, item: Any) -> tuple[Any, ...]:
    args, kwargs = item
    return (function.number, args, kwargs) if kwargs else (function.number, args)
