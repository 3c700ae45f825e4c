"""Progress bars of pools: tqdm's, rich's, or the user's own.

A bar is decoration. Whatever goes wrong with it is said once, in the log, and the work goes on
without a bar.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from pparallel.interfaces.pool import Bar, MakeBar, Meter, Metering, Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

logger = logging.getLogger(__name__)

INTERVAL = 0.1  #: seconds between two drawings of rich's; tqdm has the same

_TQDM = {True: "tqdm.auto", "tqdm": "tqdm", "notebook": "tqdm.notebook"}

_hidden = False
_told: set[str] = set()  #: the kinds of trouble that the log has


def metering(progress: Progress) -> Metering | None:
    """Return what shows bars as the config says, None: there are none to show."""
    if progress is False or _hidden:
        return None
    if callable(progress):
        return partial(BarMeter, progress)
    try:
        return partial(BarMeter, _RichBars().add if progress == "rich" else _of_tqdm(progress))
    except Exception as error:  # noqa: BLE001 - broken libraries raise anything
        library = "rich" if progress == "rich" else "tqdm"
        hint = "To have them: pip install 'pparallel[progress]'"
        _tell(library, f"No progress bars: {error}. {hint}")
        return None


def hide() -> None:
    """Show no bars from now on: called in a worker process, whose terminal is its parent's."""
    global _hidden
    _hidden = True


def _tell(kind: str, message: str) -> None:
    if kind not in _told:
        _told.add(kind)
        logger.warning("%s", message)


class BarMeter(Meter):
    """Has a bar show what ends, in the thread where it does; the bar says how often it draws."""

    def __init__(self, make: MakeBar, name: str, total: int | None) -> None:
        self._make: Callable[[], Bar] | None = partial(make, name, total)
        self._bar: Bar | None = None
        self._lock = threading.RLock()  # a finalizer may close while its own thread draws
        self._process = os.getpid()

    @override
    def start(self) -> None:
        with self._lock:
            make, self._make = self._make, None
            if make is not None:
                self._bar = self._guarded(make)

    @override
    def advance(self, count: int) -> None:
        with self._lock:
            if self._bar is not None and count:
                self._guarded(self._bar.update, count)

    @override
    def close(self) -> None:
        if self._process != os.getpid():
            return  # the bar is the parent's
        with self._lock:
            bar, self._bar, self._make = self._bar, None, None
            if bar is not None:
                self._guarded(bar.close)

    def _guarded(self, draw: Callable[..., Any], *args: int) -> Any:
        try:
            return draw(*args)
        except Exception as error:  # noqa: BLE001 - no bar is worth a failure
            _tell("bar", f"A progress bar cannot be shown: {type(error).__name__}: {error}")
            bar, self._bar = self._bar, None
            if bar is not None:
                self._guarded(bar.close)


def _of_tqdm(kind: bool | str) -> MakeBar:
    found = import_module(_TQDM[kind])
    base: Any = found.tqdm
    if getattr(found, "IProgress", base) is None:
        raise ImportError(found.WARN_NOIPYW)
    if any(each.__module__ == "tqdm.notebook" for each in base.__mro__):
        return lambda name, total: base(total=total, desc=name)

    class TerminalBar(base):  # type: ignore[misc]
        """A bar in a terminal; one that is inside another makes way when it is done."""

        monitor_interval = 0  # no thread of tqdm's

        def refresh(self, *_: object, **__: object) -> None:
            with self.get_lock():  # where the terminal fails, tqdm's leaves the lock locked
                self.display()

        def __del__(self) -> None:
            with contextlib.suppress(Exception):  # one that could not be made cannot be closed
                super().__del__()

    return lambda name, total: TerminalBar(total=total, desc=name, leave=None, dynamic_ncols=True)


class _RichBars:
    """All bars that are shown at a time: rich's lie in one display, which starts with the first."""

    def __init__(self) -> None:
        import rich.progress

        self._rich = rich.progress
        self._lock = threading.RLock()
        self._progress: RichProgress | None = None
        self._open = 0

    def add(self, name: str, total: int | None) -> Bar:
        with self._lock:
            progress = self._progress = self._progress or self._started()
            self._open += 1
            try:
                return _RichBar(progress, name, total, self._leave)
            except BaseException:
                self._leave()
                raise

    def _leave(self) -> None:
        with self._lock:
            self._open -= 1
            if not self._open and self._progress is not None:
                progress, self._progress = self._progress, None
                progress.stop()

    def _started(self) -> RichProgress:
        from rich.console import Console

        rich = self._rich
        progress: RichProgress = rich.Progress(
            rich.TextColumn("{task.description}", markup=False),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TimeElapsedColumn(),
            rich.TimeRemainingColumn(),
            console=Console(stderr=True),
            auto_refresh=False,  # no thread of rich's
            redirect_stdout=False,  # sys.stdout is not ours to replace
            redirect_stderr=False,
        )
        progress.start()
        return progress


class _RichBar:
    def __init__(self, progress: RichProgress, name: str, total: int | None, leave: Any) -> None:
        self._progress, self._leave = progress, leave
        self._task = progress.add_task(name, total=total)
        self._drawn, self._new = monotonic(), 0

    def update(self, n: int, /) -> None:
        self._new += n
        if monotonic() - self._drawn >= INTERVAL:
            self._draw()

    def close(self) -> None:
        try:
            self._draw()
            self._progress.stop_task(self._task)
        finally:
            self._leave()

    def _draw(self) -> None:
        self._progress.advance(self._task, self._new)
        self._drawn, self._new = monotonic(), 0
        self._progress.refresh()
