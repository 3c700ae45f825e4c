"""Bars of rich."""

from __future__ import annotations

import threading

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pparallel.interfaces.pool import Bar, MakeBar


def maker(kind: bool | str) -> MakeBar:
    """Return what makes rich's bars, of which there is one kind."""
    return _Display().add


class _Display:
    """All bars that are shown at a time: rich's lie in one display, which starts with the first."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._progress: Progress | None = None
        self._open = 0

    def add(self, name: str, total: int | None) -> Bar:
        with self._lock:
            progress = self._progress
            if progress is None:
                progress = self._progress = _started()
            self._open += 1
            try:
                return _RichBar(self, progress, name, total)
            except BaseException:
                self.leave()
                raise

    def leave(self) -> None:
        with self._lock:
            self._open -= 1
            if not self._open and self._progress is not None:
                progress, self._progress = self._progress, None
                progress.stop()


class _RichBar:
    def __init__(self, display: _Display, progress: Progress, name: str, total: int | None) -> None:
        self._display = display
        self._progress = progress
        self._task = progress.add_task(name, total=total)

    def update(self, n: int, /) -> None:
        self._progress.advance(self._task, n)
        self._progress.refresh()

    def close(self) -> None:
        try:
            self._progress.stop_task(self._task)
            self._progress.refresh()
        finally:
            self._display.leave()


def _started() -> Progress:
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,  # the ticker does it
        redirect_stdout=False,  # sys.stdout is not ours to replace from a thread
        redirect_stderr=False,
    )
    progress.start()
    return progress
