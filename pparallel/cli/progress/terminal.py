"""Rows at the bottom of a terminal that are drawn anew, and lines above them that stay."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from typing import Literal, TextIO

from rich.cells import cell_len
from rich.console import Console, RenderableType

# The cursor is hidden within a frame only: however the process ends, it is left visible.
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
_COLORS: dict[str, Literal["standard", "256", "truecolor"]] = {
    "standard": "standard",
    "256": "256",
    "truecolor": "truecolor",
}
_STYLE = re.compile(r"\x1b\[[0-9;:]*m")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x07|\x1b\\|$)|[ -/]*[0-~]?)")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f\x80-\x9f]")


class Terminal:
    """A terminal, as the display uses it; not safe for several threads at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn: list[int] = []  # how wide each row is that stands there
        self._console = Console(file=stream)  # knows the terminal, and writes nothing

    @property
    def height(self) -> int:
        """How many rows there is room for: the cursor stands below them."""
        return max(1, self._console.size.height - 1)

    def draw(self, lines: Iterable[str], rows: Sequence[str]) -> None:
        """Write *lines* where the rows were that stood there last, and *rows* below them."""
        rows = rows[: self.height]
        text = "".join(f"{each}\n" for each in (*lines, *rows))
        self._stream.write(f"{_HIDE}{self._erase()}{text}{_SHOW}")
        self._stream.flush()
        self._drawn = [cell_len(_STYLE.sub("", each)) for each in rows]

    def rendered(self, renderable: RenderableType) -> list[str]:
        """Return the lines of *renderable*, with the styles that this terminal knows."""
        known, text = self._console, io.StringIO()
        Console(
            file=text,
            force_terminal=True,
            color_system=_COLORS.get(known.color_system or ""),
            no_color=known.no_color,
            width=known.size.width,
            height=known.size.height,
        ).print(renderable)
        return text.getvalue().splitlines()

    def _erase(self) -> str:
        """Return what takes the cursor to the first row that stands there, and clears the rest."""
        if not self._drawn:
            return "\r"
        width = max(1, self._console.size.width)  # a narrower window has folded rows since
        up = sum(max(1, -(-each // width)) for each in self._drawn)
        return f"\x1b[{up}A\r\x1b[J"


def harmless(text: str) -> str:
    """Return a line of text of which nothing but its colours can reach the terminal."""
    text = text.rstrip("\r").rsplit("\r", 1)[-1]  # what a progress bar shows in the end
    if text.isprintable():
        return text
    kept = _ESCAPE.sub(lambda found: found[0] if _STYLE.fullmatch(found[0]) else "", text)
    plain = _CONTROL.sub("", kept)
    return f"{plain}\x1b[0m" if "\x1b" in plain else plain
