"""The live display: a row for each member, drawn a few times in a second."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections import deque
from typing import TextIO

from rich.text import Text
from typing_extensions import override

from pparallel.cli.progress.counting import KINDS, TASK_KINDS
from pparallel.cli.progress.prints import MemberStream
from pparallel.cli.progress.rows import live, member_style
from pparallel.cli.progress.tally import Tally
from pparallel.cli.progress.terminal import Terminal, harmless
from pparallel.cli.progress.watch import Watch
from pparallel.runtime.events import Event

logger = logging.getLogger(__name__)

PERIOD = 0.2  #: seconds between two frames
WAITING_LINES = 10_000  #: lines that wait for the next frame; who writes more waits too
HOLD = 1.0  #: seconds that it waits at most: it may hold a lock that what is drawn needs


class Display(Watch):
    """Shows a tally at the bottom of a terminal, and what members print and log above.

    Members only count, and leave lines to be written: a thread of its own draws. It harms nothing
    but itself: what goes wrong in it is logged once, and lines are written as they come from then
    on.

    Args:
        tally: what is shown.
        stdout: a terminal.
        stderr: is taken over if it is a terminal too.
    """

    kinds = (*KINDS, *TASK_KINDS)

    def __init__(self, tally: Tally, stdout: TextIO, stderr: TextIO) -> None:
        self._tally, self._stdout, self._stderr = tally, stdout, stderr
        self._terminal = Terminal(stdout)
        self._drawing = threading.Lock()
        self._changed = threading.Condition()
        self._lines: deque[tuple[str | None, str]] = deque()
        self._running = False  # whether a thread draws, and lines may be left to it
        self._cut_off = False  # whether an interrupt ended the job: nothing more is said
        self._over = threading.Event()
        self._styled: dict[str, str] = {}
        self._thread = threading.Thread(target=self._draw_on, name="pparallel-display", daemon=True)
        self._streams = [
            MemberStream(each, self._say) for each in (stdout, stderr) if each.isatty()
        ]
        self.log = _LogLines(self)

    @override
    def hear(self, event: Event) -> None:
        self._tally.hear(event)

    @override
    def start(self) -> None:
        self._running = True
        self._draw()
        self._thread.start()
        for stream in self._streams:
            _replace(stream.stream, stream.as_text())

    @override
    def stop(self, patience: float | None = None) -> None:
        for stream in self._streams:
            _replace(stream.as_text(), stream.stream)
            stream.finish()
        self._cut_off = patience is not None
        self._over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(patience)
        self._end(-1 if patience is None else patience)

    # -- lines --------------------------------------------------------------------------------

    def log_text(self, text: str) -> None:
        """Write lines that say themselves whose they are."""
        for line in text.removesuffix("\n").split("\n"):
            self._say("", line)

    def _say(self, name: str | None, text: str) -> None:
        """Have a line of member *name* written; ``None``: of no member, empty: it says so."""
        with self._changed:
            if threading.current_thread() is not self._thread:
                self._changed.wait_for(self._has_room, timeout=HOLD)
            if self._running:
                self._lines.append((name, text))
                return
            if self._cut_off:
                return
        self._write(name, text)

    def _write(self, name: str | None, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal may have gone
            self._stdout.write(self._marked(name, text) + "\n")
            self._stdout.flush()

    def _has_room(self) -> bool:
        return not self._running or len(self._lines) < WAITING_LINES

    def _marked(self, name: str | None, text: str) -> str:
        text = harmless(text)
        if name == "":
            name, found, rest = text[1:].partition("] ")
            return f"{self._mark(name)} {rest}" if found and text.startswith("[") else text
        return f"{self._mark('pparallel' if name is None else name)} {text}"

    def _mark(self, name: str) -> str:
        if name not in self._styled:
            rank = self._tally.rank(name)
            style = "bold" if rank is None else member_style(rank)
            mark = Text(f"[{name}]", style, no_wrap=True, overflow="ignore")
            self._styled[name] = self._terminal.rendered(mark)[0]
        return self._styled[name]

    # -- drawing ------------------------------------------------------------------------------

    def _draw_on(self) -> None:
        while not self._over.wait(PERIOD):
            self._draw()

    def _draw(self) -> None:
        try:
            rows = self._terminal.rendered(live(self._tally.standings(), self._terminal.height))
            with self._drawing:
                if not self._over.is_set():
                    self._terminal.draw(self._taken(), rows)
        except Exception as error:  # noqa: BLE001 - a display must not break a job
            self._give_up(error)

    def _taken(self) -> list[str]:
        with self._changed:
            taken = list(self._lines)
            self._lines.clear()
            self._changed.notify_all()
        return [self._marked(name, text) for name, text in taken]

    def _end(self, timeout: float) -> None:
        """Clear the rows and write the last lines."""
        if not self._running or not self._drawing.acquire(timeout=timeout):
            return  # another thread is writing and cannot go on: so could not this one
        try:
            self._terminal.draw(self._taken(), [])
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)
        finally:
            self._drawing.release()
            self._write_as_it_comes()

    def _give_up(self, error: Exception) -> None:
        self._over.set()
        self._write_as_it_comes()
        logger.warning("The live display has ended: %s: %s", type(error).__name__, error)

    def _write_as_it_comes(self) -> None:
        with self._changed:
            self._running = False
            left = list(self._lines)
            self._lines.clear()
            self._changed.notify_all()
        for name, text in left:
            self._write(name, text)


class _LogLines:
    """Where the log handler writes."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def write(self, text: str) -> None:
        self._display.log_text(text)

    def flush(self) -> None:
        """Do nothing: the display writes when it draws."""


def _replace(old: TextIO, new: TextIO) -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is old:
            setattr(sys, name, new)
