"""The line in which the operations of a group stand: they are done in the order begun."""

from __future__ import annotations

import contextvars
import itertools
import threading
from collections import deque
from collections.abc import Callable

from pparallel.interfaces.collective.work import FutureWork

_LINGER = 0.5  #: seconds that the thread stays when there is nothing left to do

_numbers = itertools.count()


class Line:
    """Does one job at a time.

    A job that nobody stands before may be done by the thread that has it; the others are done by
    a thread that comes with the first of them, and goes when there have been none for a moment.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[FutureWork[None]] = deque()
        self._running: object | None = None  # the job that is being done, here or there
        self._has_thread = False
        self._ended = False

    def enter(self, turn: object) -> bool:
        """Begin a job in this thread, if nobody stands before it."""
        with self._lock:
            if self._running is not None or self._waiting:
                return False
            self._running = turn
            return True

    def leave(self, turn: object) -> None:
        """End the job that was begun as *turn*, if it was."""
        with self._lock:
            if self._running is turn:
                self._running = None
                if self._waiting:
                    self._call()

    def add(self, job: Callable[[], None]) -> FutureWork[None]:
        """Have *job* done when it is its turn."""
        import torch

        mode, context = torch.is_inference_mode_enabled(), contextvars.copy_context()

        def in_the_same_mode() -> None:
            with torch.inference_mode(mode):
                context.run(job)

        queued = FutureWork(in_the_same_mode)
        with self._lock:
            self._waiting.append(queued)
            if self._running is None:
                self._call()
        return queued

    def end(self) -> None:
        """Have the thread go as soon as there is nothing left to do."""
        with self._lock:
            self._ended = True
            self._changed.notify()

    def _call(self) -> None:
        if self._has_thread:
            self._changed.notify()
            return
        name = f"collective-{next(_numbers)}"
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except RuntimeError as error:  # the system has no thread left
            for each in self._waiting:
                each.fail(error)
            self._waiting.clear()
        else:
            self._has_thread = True

    def _serve(self) -> None:
        while (queued := self._next()) is not None:
            queued.run()
            with self._lock:
                self._running = None
            del queued  # its tensors are the caller's

    def _next(self) -> FutureWork[None] | None:
        with self._lock:
            while self._running is not None or not self._waiting:
                came = self._changed.wait(0 if self._ended and not self._waiting else _LINGER)
                if not (came or self._waiting):
                    self._has_thread = False
                    return None
            self._running = queued = self._waiting.popleft()
            return queued
