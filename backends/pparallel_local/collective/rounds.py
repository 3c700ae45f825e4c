"""Rounds: members that are threads lay out their tensors, and share the work on all of them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pparallel.errors import CallTimeoutError
from pparallel.runtime.collectives import finish

if TYPE_CHECKING:
    from torch import Tensor

Job = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Layout:
    """What one member brings to a round: tensors to read from, and tensors to fill.

    Any member may touch them until the round is done.
    """

    inputs: Sequence[Tensor] = ()
    outputs: Sequence[Tensor] = ()


#: Finds what there is to do once all have laid out their tensors: jobs that any member may run.
Plan = Callable[[Sequence[Layout]], Sequence[Job]]


class Round:
    """One step of one operation.

    Until all have arrived, a round can be broken off. Then it depends on nobody any more: whoever
    is there runs what has not been run.

    Args:
        what: the operation in words; all that arrive must mean the same.
        ranks: who has to arrive.
        lock: that of the place where the round is held; held while :meth:`arrive` is called.
    """

    def __init__(self, what: str, ranks: Sequence[int], lock: threading.Lock) -> None:
        self.changed = threading.Condition(lock)
        self.arrived: set[int] = set()
        self._what = what
        self._ranks = ranks
        self._layouts: dict[int, Layout] = {}
        self._error: BaseException | None = None
        self._jobs: list[Job] | None = None  # None: there is no plan yet
        self._running = 0
        self._on_gpus: list[Tensor] = []

    @property
    def full(self) -> bool:
        """Whether all are here, and can go on."""
        return len(self._layouts) == len(self._ranks)

    def arrive(self, rank: int, what: str, layout: Layout) -> None:
        """Count *rank* as present, with its tensors."""
        self.arrived.add(rank)
        if self._error is None and what != self._what:
            self._break_off(
                ValueError(
                    f"rank {rank} began {what} where others began {self._what}:"
                    " all members of a group begin the same operations in the same order"
                )
            )
        if self._error is None:
            self._layouts[rank] = layout

    def wait(self, timeout: float, trouble: Callable[[], BaseException | None]) -> None:
        """Wait, holding the lock, until there is something to do or all is done.

        Raises:
            BaseException: the round was broken off, or what *trouble* found while some were
                missing.
        """
        found: BaseException | None = None

        def settled() -> bool:
            nonlocal found
            found = None if self.full else self._error or trouble()
            return self.full or found is not None

        if not self.changed.wait_for(settled, timeout):
            missing = [rank for rank in self._ranks if rank not in self.arrived]
            found = CallTimeoutError(f"{self._what}: the arrival of ranks {missing}", timeout)
            self._break_off(found)
        if found is not None:
            raise copy.copy(found)
        self.changed.wait_for(lambda: self._jobs or self._done())

    def work(self, plan: Plan | None) -> None:
        """Run what there is to do, as *plan* finds, without the lock; return when all is done.

        Only the last to arrive gives a plan.
        """
        if plan is not None:
            self._start(plan)
        while (job := self._next()) is not None:
            try:
                job()
                finish(*self._on_gpus)
            except BaseException as error:  # noqa: BLE001 - raised in all members
                self._error = error
            with self.changed:
                self._running -= 1
                if self._done():
                    self.changed.notify_all()
        with self.changed:
            self.changed.wait_for(self._done)
        if self._error is not None:
            raise copy.copy(self._error)

    def _start(self, plan: Plan) -> None:
        layouts = [self._layouts[rank] for rank in self._ranks]
        try:
            jobs = list(plan(layouts))
        except Exception as error:  # noqa: BLE001 - raised in all members
            self._error, jobs = error, []
        outputs = (output for each in layouts for output in each.outputs)
        self._on_gpus = [output for output in outputs if output.is_cuda]
        with self.changed:
            self._jobs = jobs
            if len(jobs) != 1:  # a single one is run by this thread: the others sleep on
                self.changed.notify_all()

    def _next(self) -> Job | None:
        with self.changed:
            if not self._jobs:
                return None
            self._running += 1
            return self._jobs.pop()

    def _done(self) -> bool:
        return self._jobs is not None and not self._jobs and not self._running

    def _break_off(self, error: BaseException) -> None:
        self._error = error
        self._layouts.clear()
        self.changed.notify_all()
