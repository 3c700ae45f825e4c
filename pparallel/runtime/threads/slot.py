"""One worker of a pool of threads, for which several threads may work by turns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Slot:
    """One worker of the pool: at any time one thread at most runs tasks for it.

    Attributes:
        number: its number, from 0.
        context: what it passes first to each function.
        busy: held by the thread that runs a task for it.
        threads: how many threads work for it, not counting those that wait for a result of their
            own pool; when it is more than one, the first to end its task leaves.
    """

    __slots__ = ("_changing", "busy", "context", "number", "threads")

    def __init__(self, number: int, context: tuple[Any, ...]) -> None:
        self.number = number
        self.context = context
        self.busy = threading.Lock()
        self.threads = 0
        self._changing = threading.Lock()

    @property
    def name(self) -> str:
        """What the worker is called in events."""
        return f"worker-{self.number}"

    def employ(self, start: Callable[[Slot], object]) -> None:
        """Have one more thread work for it, which *start* starts."""
        with self._changing:
            start(self)
            self.threads += 1

    def leave(self) -> bool:
        """Return whether the calling thread is to leave, as another stays; it counts no more."""
        with self._changing:
            if self.threads <= 1:
                return False
            self.threads -= 1
            return True

    @contextmanager
    def lent(self, start: Callable[[Slot], object]) -> Iterator[None]:
        """Let another thread work for it while the calling one, inside a task, waits.

        So a task may wait for tasks of its own pool, at any depth, and the pool cannot lock up.

        Args:
            start: starts a thread for it; not called where another works for it still.
        """
        with self._changing:
            if self.threads == 1:
                start(self)
                self.threads += 1
            self.threads -= 1
        self.busy.release()
        try:
            yield
        finally:
            with self._changing:
                self.threads += 1
            self.busy.acquire()
