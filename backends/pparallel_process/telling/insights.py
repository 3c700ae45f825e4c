"""Where the time of a pool's workers goes."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from typing_extensions import override

_SLOWEST = 5  # tasks that are named

_HEADINGS = ("", "starts", "tasks", "start-up", "waiting", "working")


@dataclass(frozen=True, slots=True)
class WorkerInsights:
    """How one worker, or all of them together, spent its life.

    A worker's life is the time in which a process worked for it, from the start of the first
    process: the sum of ``startup``, ``waiting`` and ``working``. A task that runs still counts
    as waiting until it is reported.

    Attributes:
        name: the worker's name, or ``all``.
        pid: its process, or the last one that it had; ``None`` for all.
        starts: how many processes were started for it.
        losses: how many of them died.
        tasks: how many tasks it has run.
        startup: seconds from a process's start until it takes tasks, initializer included.
        waiting: seconds in which it had nothing to do.
        working: seconds in which it ran tasks.
    """

    name: str
    pid: int | None
    starts: int
    losses: int
    tasks: int
    startup: float
    waiting: float
    working: float

    @property
    def life(self) -> float:
        """Seconds in all."""
        return self.startup + self.waiting + self.working

    @property
    def shares(self) -> dict[str, float]:
        """``startup``, ``waiting`` and ``working`` as shares of its life; they add up to 1.

        Of a life of no length all are 0.
        """
        seconds = {"startup": self.startup, "waiting": self.waiting, "working": self.working}
        return {key: each / self.life if self.life else 0.0 for key, each in seconds.items()}


@dataclass(frozen=True, slots=True)
class SlowTask:
    """A task that took long.

    Attributes:
        function: the function that it ran.
        seconds: how long it took.
        worker: who ran it.
    """

    function: str
    seconds: float
    worker: str


@dataclass(frozen=True, slots=True)
class Insights:
    """Where the time of a pool's workers went; its text is a table.

    Attributes:
        workers: one entry per worker, by number.
        total: their sum.
        slowest: the slowest tasks, the slowest first; at most five.
    """

    workers: tuple[WorkerInsights, ...]
    total: WorkerInsights
    slowest: tuple[SlowTask, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, shares included."""
        return {
            "workers": [{**asdict(each), "shares": each.shares} for each in self.workers],
            "total": {**asdict(self.total), "shares": self.total.shares},
            "slowest": [asdict(each) for each in self.slowest],
        }

    @override
    def __str__(self) -> str:
        rows = [_HEADINGS, *(_row(each) for each in (*self.workers, self.total))]
        lines = _aligned(rows)
        if self.slowest:
            tasks = [(_span(each.seconds), each.function, each.worker) for each in self.slowest]
            lines += ["", "slowest tasks", *_aligned(tasks, left=(1, 2))]
        return "\n".join(lines)


class Ledger:
    """Counts, in the parent, what the workers do; safe to call from any thread.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._accounts: dict[int, _Account] = {}
        self._slowest: list[tuple[float, int, str, str]] = []
        self._numbers = itertools.count()  # so that equally slow tasks can be compared

    def started(self, worker: int, pid: int, name: str = "") -> None:
        """A process was started for *worker*; one that it had before has ended."""
        with self._lock:
            account = self._accounts.setdefault(worker, _Account(name or f"worker-{worker}"))
            account.end(self._clock())
            account.starts += 1
            account.pid, account.began = pid, self._clock()

    def ready(self, worker: int) -> None:
        """The process of *worker* takes tasks from now on."""
        with self._lock:
            self._accounts[worker].ready(self._clock())

    def worked(self, worker: int, seconds: float, tasks: int) -> None:
        """*worker* has run so many tasks, in so many seconds."""
        with self._lock:
            account = self._accounts[worker]
            account.working += seconds
            account.tasks += tasks

    def slow(self, worker: int, seconds: float, task: Callable[[], str]) -> None:
        """A task took *seconds*; *task* is asked for its function if it is among the slowest."""
        with self._lock:
            full = len(self._slowest) == _SLOWEST
            if full and seconds <= self._slowest[0][0]:
                return
            entry = (seconds, -next(self._numbers), task(), self._accounts[worker].name)
            if full:
                heapq.heapreplace(self._slowest, entry)
            else:
                heapq.heappush(self._slowest, entry)

    def ended(self, worker: int) -> None:
        """The process of *worker* has ended, as it should."""
        with self._lock:
            self._accounts[worker].end(self._clock())

    def lost(self, worker: int) -> None:
        """The process of *worker* has died."""
        with self._lock:
            account = self._accounts[worker]
            account.losses += 1
            account.end(self._clock())

    def report(self) -> Insights:
        """Return what is known by now."""
        with self._lock:
            now = self._clock()
            workers = tuple(account.insights(now) for _, account in sorted(self._accounts.items()))
            slowest = sorted(self._slowest, reverse=True)
        tasks = tuple(SlowTask(function, each, worker) for each, _, function, worker in slowest)
        return Insights(workers, _sum(workers), tasks)


class _Account:
    """What is known of one worker; ``began`` and ``up_since`` are those of its present process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid: int | None = None
        self.starts = self.losses = self.tasks = 0
        self.working = 0.0
        self.began: float | None = None
        self.up_since: float | None = None
        self._startup = self._up = 0.0

    def ready(self, now: float) -> None:
        if self.began is not None and self.up_since is None:
            self._startup += now - self.began
            self.up_since = now

    def end(self, now: float) -> None:
        self._startup, self._up = self._until(now)
        self.began = self.up_since = None

    def insights(self, now: float) -> WorkerInsights:
        startup, up = self._until(now)
        # The worker's clock measures the work, the parent's the life: they may differ a little.
        waiting = max(0.0, up - self.working)
        counts = (self.starts, self.losses, self.tasks)
        return WorkerInsights(self.name, self.pid, *counts, startup, waiting, self.working)

    def _until(self, now: float) -> tuple[float, float]:
        if self.began is None:
            return self._startup, self._up
        if self.up_since is None:
            return self._startup + now - self.began, self._up
        return self._startup, self._up + now - self.up_since


def _sum(workers: tuple[WorkerInsights, ...]) -> WorkerInsights:
    return WorkerInsights(
        "all",
        None,
        sum(each.starts for each in workers),
        sum(each.losses for each in workers),
        sum(each.tasks for each in workers),
        sum(each.startup for each in workers),
        sum(each.waiting for each in workers),
        sum(each.working for each in workers),
    )


def _row(worker: WorkerInsights) -> tuple[str, ...]:
    seconds = (worker.startup, worker.waiting, worker.working)
    spent = zip(seconds, worker.shares.values(), strict=True)
    times = (f"{each:.3f} s {share:4.0%}" for each, share in spent)
    starts = f"{worker.starts} ({worker.losses} lost)" if worker.losses else str(worker.starts)
    return (worker.name, starts, str(worker.tasks), *times)


def _span(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


def _aligned(rows: Sequence[tuple[str, ...]], left: tuple[int, ...] = (0,)) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
