"""A gate at which tasks wait, in whatever thread or process they run."""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path
from time import monotonic
from typing import Any

from typing_extensions import override

from pparallel.testing.patience import PATIENCE


class Gate:
    """Tasks arrive and wait; the test sees them arrive, and opens.

    It is made of two named pipes, so that a copy of it works in another process. Only the test's
    own gate, in the thread of the test, is opened and closed.

    Args:
        directory: an empty directory of its own.
    """

    def __init__(self, directory: Path) -> None:
        self._arrivals = directory / "arrivals"
        self._way = directory / "way"
        os.mkfifo(self._arrivals)
        os.mkfifo(self._way)
        self._seen = os.open(self._arrivals, os.O_RDWR)
        self._bar: int | None = os.open(self._way, os.O_RDWR)

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {"_arrivals": self._arrivals, "_way": self._way}

    def pass_through(self, value: Any = None) -> Any:
        """Arrive, wait until the gate is open, and return *value*: the task."""
        with contextlib.suppress(OSError):  # nobody looks any more
            arrivals = os.open(self._arrivals, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(arrivals, b".")
            finally:
                os.close(arrivals)
        self.wait()
        return value

    def wait(self) -> None:
        """Wait until the gate is open."""
        with contextlib.suppress(FileNotFoundError):
            # A reader that comes as the bar is lifted must not wait for the next writer.
            way = os.open(self._way, os.O_RDONLY | os.O_NONBLOCK)
            try:
                os.set_blocking(way, True)
                os.read(way, 1)
            finally:
                os.close(way)

    def arrived(self, count: int = 1) -> None:
        """Wait until *count* more tasks have arrived; fail if they do not."""
        arrivals, end = select.poll(), monotonic() + PATIENCE
        arrivals.register(self._seen, select.POLLIN)
        while count > 0:
            ready = arrivals.poll(1000 * max(0.0, end - monotonic()))
            assert ready, f"{count} more tasks did not arrive within {PATIENCE} s"
            count -= len(os.read(self._seen, count))

    def open(self) -> None:
        """Let everybody through, now and later."""
        if self._bar is not None:
            self._way.unlink()
            os.close(self._bar)
            self._bar = None

    def close(self) -> None:
        """Open, and release the pipes."""
        self.open()
        if self._seen >= 0:
            os.close(self._seen)
            self._seen = -1
