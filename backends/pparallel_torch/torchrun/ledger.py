"""What ranks have come to, over all times that they were started."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pparallel.errors import ClosedError, RemoteError, WorkerLostError
from pparallel_torch.torchrun.plan import Report
from pparallel_torch.torchrun.process import RankProcess


@dataclass(slots=True)
class _Life:
    """One time that all ranks were started.

    Attributes:
        processes: those of this machine that have come, by local rank.
        values: what was returned, by rank.
        failures: what was raised, by rank, in the order in which that became known.
        silent: ranks that have ended without a word, likewise, and their processes.
    """

    processes: dict[int, RankProcess] = field(default_factory=dict)
    values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, BaseException] = field(default_factory=dict)
    silent: dict[int, RankProcess] = field(default_factory=dict)


class Ledger:
    """Tells which results count: those of the last time that the ranks were started."""

    def __init__(
        self,
        size: int,
        max_restarts: int,
        succeeded: Callable[[int, Any], None],
        failed: Callable[[int, BaseException], None],
    ) -> None:
        """Begin.

        Args:
            size: how many ranks there are on this machine.
            max_restarts: how often they may be started again.
            succeeded: called once for each rank that has ended well, at the end.
            failed: called for each that has not, once nothing starts it again.
        """
        self._size, self._max_restarts = size, max_restarts
        self._succeeded, self._failed = succeeded, failed
        self._changed = threading.Condition()
        self._lives: defaultdict[int, _Life] = defaultdict(_Life)
        self._told: set[int] = set()
        self._closing = self._ended = False

    def came(self, process: RankProcess) -> None:
        """Take note of a rank that was started, and wait for the others that were with it."""
        with self._changed:
            processes = self._lives[process.restart].processes
            processes[process.local_rank] = process
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closing or len(processes) == self._size)

    def stop_waiting(self) -> None:
        """Wait for no rank any more that has not come."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def returned(self, process: RankProcess, value: Any) -> None:
        """Take note of a result."""
        with self._changed:
            life = self._lives[process.restart]
            life.values[process.rank] = value
            if len(life.values) < self._size:
                return
        for rank, each in life.values.items():
            self._tell(rank, self._succeeded, each)

    def raised(self, process: RankProcess, error: BaseException) -> None:
        """Take note of a failure."""
        with self._changed:
            self._lives[process.restart].failures[process.rank] = error
        if process.restart == self._max_restarts:
            self._tell(process.rank, self._failed, error)

    def fell_silent(self, process: RankProcess, code: int | None, patience: float) -> None:
        """Take note of a rank that has ended without a word.

        Args:
            process: what ran it.
            code: how it has ended; ``None`` if only the agent knows.
            patience: seconds in which the agent, if the code is not 0, ends all or starts again.
        """
        with self._changed:
            first = not (life := self._lives[process.restart]).silent and not life.failures
            life.silent[process.rank] = process
            if code is None and not self._changed.wait_for(
                lambda: self._closing or len(self._lives) > process.restart + 1, patience
            ):
                code = 0
            first = first and not self._closing  # else it ends with the agent
        # The agent takes one with code 0 for done, and would wait for the others for ever.
        if first and (code == 0 or (code is not None and process.restart == self._max_restarts)):
            self._tell(process.rank, self._failed, _lost(process, code))

    def close(self, report: Report | None, lost: Exception | None) -> None:
        """Say of each rank what has become of it, for the agent has ended.

        Args:
            report: what the agent has said; ``None`` if it could not.
            lost: why it could not; ``None`` if it was told to end.
        """
        life = self._last()
        first = next(iter(life.failures), next(iter(life.silent), None))
        for rank in self._ranks(life):
            if rank in life.failures:
                self._tell(rank, self._failed, life.failures[rank])
            elif rank == first and report is not None and rank in report.ended:
                error = _lost(life.silent[rank], report.ended[rank][1])
                self._tell(rank, self._failed, error)
            else:
                self._tell(rank, self._failed, _ended(rank, report, lost))
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def processes(self) -> list[RankProcess]:
        """Return the newest process of each rank, once all have come or the agent has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._last().processes) == self._size)
            found = self._last().processes
            return [found[local_rank] for local_rank in sorted(found)]

    def known(self) -> list[RankProcess]:
        """Return all processes that have come, of whatever time."""
        with self._changed:
            return [each for life in self._lives.values() for each in life.processes.values()]

    def _last(self) -> _Life:
        return self._lives[max(self._lives, default=0)]

    def _ranks(self, life: _Life) -> list[int]:
        """Return the numbers of this machine's ranks: all follow from that of one."""
        first = min((each.rank - each.local_rank for each in life.processes.values()), default=0)
        return list(range(first, first + self._size))

    def _tell(self, rank: int, tell: Callable[[int, Any], None], what: Any) -> None:
        with self._changed:
            if rank in self._told:
                return
            self._told.add(rank)
        tell(rank, what)


def _lost(process: RankProcess, code: int | None) -> WorkerLostError:
    return WorkerLostError(process.pid, code, f"it was rank {process.rank} and had not returned")


def _ended(rank: int, report: Report | None, lost: Exception | None) -> Exception:
    """Return why a rank has ended that did nothing wrong itself."""
    if report is not None and report.error is not None:
        return RemoteError("torchrun", *report.error, kind="process")
    return lost or ClosedError(f"rank {rank}", "was ended", consequence=True)
