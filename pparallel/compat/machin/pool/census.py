"""Which workers of an engine live, and what their deaths cost."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

from pparallel.compat.machin.pool.ledger import Key, Ledger
from pparallel.errors import WorkerLostError

logger = logging.getLogger(__name__)

_STARTS = 3  #: how often workers may fail to start, one after the other


class Census:
    """Finds the dead, and fails what they had not answered. Used by one thread.

    Args:
        ledger: the tasks.
        fail: fails a task with an error.

    Attributes:
        broken: why no worker can start; ``None``: they can.
    """

    def __init__(self, ledger: Ledger, fail: Callable[[Key, BaseException], object]) -> None:
        self._ledger, self._fail = ledger, fail
        self._living: set[Any] = set()
        self._fallen: dict[Any, float] = {}  # and since when
        self._buried: weakref.WeakSet[Any] = weakref.WeakSet()
        self._explained: set[int] = set()
        self._failures = 0
        self._idle: tuple[WorkerLostError, float] | None = None  # the last that died idle, and when
        self.broken: BaseException | None = None

    def look(self, workers: Iterable[Any]) -> None:
        """Find out who has ended, of *workers* and of those that there were."""
        # The pool may let go of one that has died before this looks again.
        self._living.update(
            each for each in workers if each not in self._fallen and each not in self._buried
        )
        for each in [each for each in self._living if not each.is_alive()]:
            self._living.discard(each)
            self._fallen[each] = monotonic()

    def bury(self, known: float, tasks: Any) -> None:
        """Fail what was lost with workers that had ended at the time *known*.

        Args:
            known: all that was answered before is in the ledger.
            tasks: the queue of tasks.
        """
        if self._ledger.read():
            self.answered()
        for worker in [each for each, since in self._fallen.items() if since <= known]:
            del self._fallen[worker]
            self._buried.add(worker)
            if getattr(worker, "pid", None) is not None:  # threads have none
                self._settle_accounts(worker)
        if self._idle is not None:
            error, since = self._idle
            empty = getattr(tasks, "empty", None)
            is_empty = empty is not None and bool(empty())
            for lost in self._ledger.missing(since, queue_is_empty=is_empty):
                self._fail(lost, error)

    def answered(self) -> None:
        """Take in that there are workers which could start."""
        self._failures = 0

    def explained(self, pid: int, error: BaseException) -> None:
        """Take in why a worker could not start, from itself."""
        self._explained.add(pid)
        self.failed_to_start(error)

    def failed_to_start(self, error: BaseException) -> None:
        """Count that a worker could not start."""
        self._failures += 1
        if self._failures >= _STARTS:
            self.broken = error

    def _settle_accounts(self, worker: Any) -> None:
        pid, code, was_ready = worker.pid, worker.exitcode, self._ledger.was_ready(worker.pid)

        def error(what: str) -> WorkerLostError:
            return WorkerLostError(pid, code, f"it was {worker.name} and {what}")

        lost = self._ledger.bury(pid)
        for job, chunk in lost:
            self._fail((job, chunk), error(f"ran task {chunk} of call {job}"))
        if code != 0 and not lost:
            self._idle = error("had just taken a task"), monotonic()
            if was_ready:
                logger.warning("%s, process %s, died and was idle", worker.name, pid)
            elif pid not in self._explained:
                self.failed_to_start(error("was starting"))
        self._explained.discard(pid)
