"""Timers whose time a test makes pass."""

from __future__ import annotations

from typing_extensions import override

from pparallel.runtime.timers import Timers


class FakeTimers(Timers):
    """Calls in :meth:`advance`, in the calling thread, what a thread of its own would call.

    Attributes:
        now: seconds, as the clock has it.
    """

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__("fake-timers", lambda: self.now)

    @override
    def start(self) -> None:
        """Start no thread."""

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass."""
        until = self.now + seconds
        while (left := self.run_due()) <= until - self.now:
            self.now += left
        self.now = until
