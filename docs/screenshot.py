"""Makes the pictures of ``pparallel run`` in docs/cli.md: ``python docs/screenshot.py``.

It runs the digits example in a pseudo-terminal, has a terminal emulator (pyte) show what comes, and
writes two of its screens as SVG: one while the members run, and the last one.
"""

from __future__ import annotations

import errno
import fcntl
import io
import itertools
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyte
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
EXAMPLE = "examples/digits/embedded.yaml"
LIMIT = 60.0  #: seconds that a program may take to show what it should

_PYTE_COLORS = {"brown": "yellow"}  # names that rich does not use


class TerminalRun:
    """A command in a pseudo-terminal, and the screen that its user would see.

    Args:
        command: program and arguments.
        columns: width of the terminal.
        rows: its height.
        env: variables that are changed; those with ``None`` are removed.
        cwd: where it runs.

    Attributes:
        process: the command.
        screen: what its user sees.
        received: all that it has written so far.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 100,
        rows: int = 24,
        env: Mapping[str, str | None] | None = None,
        cwd: Path = ROOT,
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=100_000)
        self.received = bytearray()
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (rows, columns))
        try:
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env=_environment(env or {}),
                stdin=slave,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
                preexec_fn=_own_the_terminal,  # so that Ctrl-C becomes a signal
            )
        finally:
            os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()
        self.process.kill()
        self.process.wait()

    @property
    def lines(self) -> list[str]:
        """What stands on the screen, row by row."""
        return [each.rstrip() for each in self.screen.display]

    @property
    def scrolled(self) -> list[str]:
        """What has left the screen at its top."""
        width = self.screen.columns
        history = self.screen.history.top
        return ["".join(row[x].data for x in range(width)).rstrip() for row in history]

    def type(self, text: str) -> None:
        """Press keys; the character of code 3 is Ctrl-C."""
        os.write(self._master, text.encode())

    def read(self, timeout: float) -> bool:
        """Show what comes within *timeout* seconds; return whether more may come."""
        if not select.select([self._master], [], [], timeout)[0]:
            return True
        try:
            received = os.read(self._master, 65536)
        except OSError as error:
            if error.errno != errno.EIO:  # how Linux says that nobody has the terminal open
                raise
            return False
        self.received += received
        self._stream.feed(received)
        return bool(received)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Show what comes until *condition* holds, between two frames.

        Raises:
            AssertionError: it does not, up to the end of the program.
        """
        end = time.monotonic() + LIMIT
        while self.screen.cursor.hidden or not condition():  # hidden: within a frame
            more = self.read(max(0.0, end - time.monotonic()))
            if not more or time.monotonic() > end:
                shown = "\n".join([*self.scrolled, *self.lines])
                message = f"{what}: it did not come, and this did:\n{shown}"
                raise AssertionError(message)

    def finish(self) -> int:
        """Show what comes until the end; return the exit code."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end and self.read(max(0.0, end - time.monotonic())):
            continue
        return self.process.wait(max(1.0, end - time.monotonic()))

    def close(self) -> None:
        """Take the terminal away, as when its window is closed."""
        master, self._master = self._master, -1
        if master >= 0:
            os.close(master)


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    ours = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE")
    kept = {key: each for key, each in os.environ.items() if not key.startswith("PPARALLEL_")}
    changed = {**kept, **dict.fromkeys(ours), "TERM": "xterm-256color", **changes}
    return {key: each for key, each in changed.items() if each is not None}


def _own_the_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def svg(screen: pyte.Screen, title: str, rows: int | None = None) -> str:
    """Return a picture of *screen*, of its first *rows* rows."""
    console = Console(
        record=True,
        width=screen.columns,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    for y in range(screen.lines if rows is None else rows):
        line = Text(no_wrap=True)
        chars = [screen.buffer[y][x] for x in range(screen.columns)]
        for style, same in itertools.groupby(chars, _style):
            line.append("".join(char.data for char in same), style)
        console.print(line, crop=True)
    return console.export_svg(title=title, unique_id="pparallel")


def _style(char: Any) -> Style:
    return Style(
        color=_color(char.fg),
        bgcolor=_color(char.bg),
        bold=char.bold,
        italic=char.italics,
        underline=char.underscore,
        reverse=char.reverse,
    )


def _color(name: str) -> Color | None:
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return Color.parse(f"#{name}")
    name = _PYTE_COLORS.get(name, name)
    bright = name.removeprefix("bright")
    return Color.parse(f"bright_{bright}" if bright != name else name)


def _all_run(lines: Sequence[str]) -> bool:
    """Return whether every worker's row shows a rate and steps from the middle of the job."""
    rows = [each.split() for each in lines if each.startswith("worker-")]
    return len(rows) == 3 and all(
        row[1] == "running" and row[3] != "-" and int(row[2]) >= 400 for row in rows
    )


def main() -> None:
    """Run the example and write the pictures."""
    IMAGES.mkdir(exist_ok=True)
    title = f"pparallel run {EXAMPLE}"
    command = [sys.executable, "-m", "pparallel", "run", EXAMPLE]
    with TerminalRun(command, columns=90, rows=12) as run:
        run.until(lambda: _all_run(run.lines), "rows of running workers")
        used = max(y for y, line in enumerate(run.lines) if line) + 1
        (IMAGES / "run.svg").write_text(svg(run.screen, title, used))
        if run.finish():
            sys.exit("\n".join(run.lines))
        used = max(y for y, line in enumerate(run.lines) if line) + 1
        (IMAGES / "run_done.svg").write_text(svg(run.screen, title, used))


if __name__ == "__main__":
    main()
