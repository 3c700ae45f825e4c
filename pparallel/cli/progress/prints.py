"""Standard output and standard error, by lines that know their member."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TextIO, cast

from pparallel.runtime import member

LONGEST = 8192  #: characters after which a line is passed on although it has not ended

Say = Callable[[str | None, str], None]


class MemberStream:
    """Stands for a text stream; whole lines go to *say*, with the name of the thread's member.

    What it does not do itself is the stream's own: its descriptor, encoding, buffer.

    Attributes:
        stream: what it stands for.
    """

    def __init__(self, stream: TextIO, say: Say) -> None:
        self.stream, self._say = stream, say
        self._lock = threading.Lock()
        self._begun: dict[tuple[int, str | None], str] = {}

    def write(self, text: str) -> int:
        """Take *text*; what stands after its last line break waits for more."""
        current = member.current()
        key = threading.get_ident(), None if current is None else current.name
        with self._lock:
            *lines, left = (self._begun.pop(key, "") + text).split("\n")
            if len(left) > LONGEST:
                lines, left = [*lines, left], ""
            if left:
                self._begun[key] = left
        for line in lines:
            self._say(key[1], line)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Take several texts."""
        for each in lines:
            self.write(each)

    def flush(self) -> None:
        """Do nothing: a line that has not ended cannot be shown."""

    def isatty(self) -> bool:
        """Return false: what draws for itself would draw over the display."""
        return False

    def finish(self) -> None:
        """Pass on the lines that have not ended."""
        with self._lock:
            begun, self._begun = self._begun, {}
        for (_, name), text in begun.items():
            self._say(name, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def as_text(self) -> TextIO:
        """Return it as what ``sys.stdout`` is declared to be."""
        return cast("TextIO", self)
