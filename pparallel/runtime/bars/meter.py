"""Count the tasks of a call, and have a bar show them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import partial

from typing_extensions import override

from pparallel.interfaces.pool import Bar, MakeBar, Meter
from pparallel.runtime.bars import ticker

logger = logging.getLogger(__name__)

_failed = False  # a bar that could not be shown was told of


class BarMeter(Meter):
    """Counts at once, and has the ticker's thread draw: a slow terminal delays no task.

    The bar is made and drawn by the ticker, and for the last time by whoever closes the meter.
    """

    def __init__(self, make: MakeBar, name: str, total: int | None) -> None:
        self._make: MakeBar | None = make
        self._name = name
        self._total = total
        self._bar: Bar | None = None
        self._count = self._shown = 0
        self._counting = threading.Lock()
        self._drawing = threading.RLock()  # a finalizer may close while its own thread draws
        self._closed = False
        self._process = os.getpid()

    @override
    def start(self) -> None:
        self._guarded(partial(ticker.follow, self))

    @override
    def advance(self, count: int) -> None:
        with self._counting:
            self._count += count

    @override
    def close(self) -> None:
        if self._process != os.getpid():
            return  # the bar is the parent's
        with self._drawing:
            if not self._closed:
                self._closed = True
                ticker.forget(self)
                self._guarded(self._finish)

    def show(self) -> None:
        """Draw what has been counted since the last time; called by the ticker."""
        with self._drawing:
            if not self._closed:
                self._guarded(self._draw)

    def _draw(self) -> None:
        if self._make is None:
            return
        if self._bar is None:
            self._bar = self._make(self._name, self._total)
        new = self._count - self._shown
        if new:
            self._shown += new
            self._bar.update(new)

    def _finish(self) -> None:
        try:
            self._draw()
        finally:
            bar, self._bar, self._make = self._bar, None, None
            if bar is not None:
                bar.close()

    def _guarded(self, draw: Callable[[], None]) -> None:
        global _failed
        try:
            draw()
        except Exception as error:  # noqa: BLE001 - no bar is worth a failure
            self._make = self._bar = None
            if not _failed:
                _failed = True
                logger.warning(
                    "A progress bar cannot be shown: %s: %s", type(error).__name__, error
                )
