"""Cleans up after a cluster of our own, when its program lets go of it or is gone.

It runs as a program of its own, outside of the package, and waits for the end of its standard
input. Where a program is killed Ray's main processes end with it; what these have started takes
a minute to find out, and the folder would stay.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PATIENCE = 20.0  #: seconds in which what was killed must be gone
_PAUSE = 0.05


def main(folder: str) -> None:
    """Wait, and then end what of Ray's runs in *folder*, and remove that."""
    sys.stdin.buffer.read()
    deadline = time.monotonic() + _PATIENCE
    while (found := list(_processes(folder))) and time.monotonic() < deadline:
        for each in found:
            with contextlib.suppress(OSError):  # it has ended
                os.kill(each, signal.SIGKILL)
        time.sleep(_PAUSE)
    shutil.rmtree(folder, ignore_errors=True)


def _processes(folder: str) -> Iterator[int]:
    """Yield Ray's processes that run in *folder*; programs that are connected are none of them."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            command = (process / "cmdline").read_bytes()
            if int(process.name) != os.getpid() and (
                os.fsencode(folder) in command
                or (command.startswith(b"ray::") and _has_open(process, folder))
            ):
                yield int(process.name)


def _has_open(process: Path, folder: str) -> bool:
    for each in (process / "fd").iterdir():
        with contextlib.suppress(OSError):  # it has been closed
            if os.readlink(each).startswith(folder):
                return True
    return False


if __name__ == "__main__":
    main(sys.argv[1])
