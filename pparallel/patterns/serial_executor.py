"""One process after the other runs a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pparallel.runtime.shared_lock import SharedLock

T = TypeVar("T")


class MpSerialExecutor:
    """Has ranks run a function in turn, so that the first can leave behind what the others use.

    Made before the ranks start, it works in forks as it is, in threads, and wherever it is sent
    with the function or its arguments. If a process dies in its turn the next one has it.

    Source: torch_xla, ``MpSerialExecutor``.
    """

    def __init__(self) -> None:
        self._lock = SharedLock()

    def run(self, fn: Callable[[], T]) -> T:
        """Return what ``fn()`` returns, which no other rank runs meanwhile.

        Raises:
            ClosedError: the calling rank was told to stop before its turn came.
            RuntimeError: *fn* itself calls this.
            Exception: what *fn* raises.
        """
        with self._lock.held("MpSerialExecutor.run"):
            return fn()
