"""What a rank prints, handed on to the process that launched it.

Where the launching program has put something else in the place of standard output, such as a
display or a notebook's cell, what its ranks print belongs there.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, TextIO, cast

_LONGEST = 8192  #: characters that wait for the end of their line

#: sends the name of a stream, and text for it
Send = Callable[[str, str], None]
_NAMES = ("stdout", "stderr")


def is_replaced() -> bool:
    """Return whether standard output or error of this process is something else."""
    return any(getattr(sys, name) is not getattr(sys, f"__{name}__") for name in _NAMES)


def hand_on(send: Send) -> Callable[[], None]:
    """Hand on what this process, a rank, prints from now on.

    Returns:
        A function that hands on the lines which have not ended.
    """
    streams = [PassingStream(getattr(sys, f"__{name}__"), name, send) for name in _NAMES]
    sys.stdout, sys.stderr = (cast("TextIO", each) for each in streams)

    def flush() -> None:
        for each in streams:
            each.flush()

    return flush


def take_in(stream: str, text: str) -> None:
    """Print what a rank has printed."""
    to = getattr(sys, stream)
    if to is not None:
        to.write(text)
        to.flush()


class PassingStream:
    """Stands for a text stream; what is written goes to *send*, whole lines at a time.

    What it does not do itself is the stream's own: its descriptor, encoding, buffer.

    Args:
        stream: what it stands for, if there is such a stream.
        name: that of the stream.
        send: hands it on.
    """

    def __init__(self, stream: TextIO | None, name: str, send: Send) -> None:
        self._stream, self._name, self._send = stream, name, send
        self._lock = threading.Lock()
        self._begun: dict[int, str] = {}  #: by thread: the lines of two are not to be mixed

    def write(self, text: str) -> int:
        """Take *text*; what stands after its last line break waits for more, or for a flush."""
        thread = threading.get_ident()
        with self._lock:
            whole, found, left = (self._begun.pop(thread, "") + text).rpartition("\n")
            if len(left) > _LONGEST:
                whole, found, left = whole + found + left, "", ""
            if left:
                self._begun[thread] = left
        self._pass_on(whole + found)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Take several texts."""
        for each in lines:
            self.write(each)

    def flush(self) -> None:
        """Pass on the lines that have not ended."""
        with self._lock:
            begun, self._begun = self._begun, {}
        for each in begun.values():
            self._pass_on(each)

    def isatty(self) -> bool:
        """Return false: what draws for itself would draw over the lines of others."""
        return False

    def _pass_on(self, text: str) -> None:
        for start in range(0, len(text), _LONGEST):
            self._send(self._name, text[start : start + _LONGEST])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
