"""A thread that draws all bars of this process, alive while there are any."""

from __future__ import annotations

import os
import threading
from typing import Protocol

INTERVAL = 0.1  #: seconds between two drawings


class Shown(Protocol):
    """What is to be drawn."""

    def show(self) -> None:
        """Draw it; raises nothing."""


class _Ticker:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._shown: dict[int, Shown] = {}
        self._new = False
        self._thread: threading.Thread | None = None

    def follow(self, shown: Shown) -> None:
        with self._changed:
            self._shown[id(shown)] = shown
            self._new = True
            self._changed.notify_all()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="pparallel-bars", daemon=True)
                thread.start()  # first: without memory for it the next bar is to try again
                self._thread = thread

    def forget(self, shown: Shown) -> None:
        with self._changed:
            self._shown.pop(id(shown), None)
            if not self._shown:
                self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._new or not self._shown, INTERVAL)
                if not self._shown:
                    self._thread = None
                    return
                self._new = False
                shown = list(self._shown.values())
            while shown:
                shown.pop().show()


_ticker = _Ticker()


def follow(shown: Shown) -> None:
    """Draw *shown* from now on."""
    _ticker.follow(shown)


def forget(shown: Shown) -> None:
    """Draw *shown* no more."""
    _ticker.forget(shown)


def _start_afresh() -> None:
    global _ticker
    _ticker = _Ticker()  # the thread, and whoever held the lock, stayed in the parent


os.register_at_fork(after_in_child=_start_afresh)
