"""What a client is known to have begun and ended."""

from __future__ import annotations

from typing import Any

from pparallel.testing.linearizability.operation import Operation, Unknown
from pparallel.testing.linearizability.script import Step


class Journal:
    """The operations of one client, and the one that is under way."""

    def __init__(self, member: str) -> None:
        self.member = member
        self.begun = 0
        self._ended: list[Operation] = []
        self._open: tuple[Step, float] | None = None

    def begin(self, step: Step, start: float) -> None:
        """Note that a step begins."""
        self._open = (step, start)
        self.begun += 1

    def end(self, result: Any, start: float, end: float) -> None:
        """Note how it ended; it had not begun before *start*."""
        assert self._open is not None
        step, _ = self._open
        self._ended.append(Operation(*step, result, start, end, self.member))
        self._open = None

    def operations(self) -> list[Operation]:
        """Return all; of the one that is under way the result is unknown."""
        if self._open is None:
            return self._ended
        step, start = self._open
        return [*self._ended, Operation(*step, Unknown(), start, float("inf"), self.member)]
