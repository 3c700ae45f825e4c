"""Who is inside, and that nobody is while the process forks."""

from __future__ import annotations

import threading


class Gate:
    """Counts the threads inside, and lets none in while it is shut."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._shut = False

    def __enter__(self) -> None:
        with self._changed:
            while self._shut:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            if not self._inside:
                self._changed.notify_all()

    def shut(self, patience: float) -> None:
        """Let nobody in, and wait until nobody is inside, at most *patience* seconds.

        No longer: the calling thread may be inside itself, in a signal handler.
        """
        with self._changed:
            self._shut = True
            self._changed.wait_for(lambda: not self._inside, patience)

    def reopen(self) -> None:
        """Let threads in again."""
        with self._changed:
            self._shut = False
            self._changed.notify_all()
