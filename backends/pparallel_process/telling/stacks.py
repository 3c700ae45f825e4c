"""The Python stacks of a worker, whatever it does.

A real-time signal makes the worker write the stacks of all its threads to a file that its parent
reads. It is written by a C handler, without the GIL: that works in a task whose C code keeps it.
"""

from __future__ import annotations

import faulthandler
import fcntl
import logging
import os
import signal
import threading
from pathlib import Path
from time import monotonic

import pparallel.runtime.pools
import pparallel.runtime.processes
from pparallel.runtime.processes import Process

logger = logging.getLogger(__name__)

SIGNAL = signal.SIGRTMIN + 3

_HERE = (*pparallel.runtime.pools.__path__, str(Path(__file__).parents[1]))
_LOOK = 0.02  # seconds between looks at the file; when three find it the same, it is whole
_LOOKS = 3
_STARTING = f'File "{os.path.join(*pparallel.runtime.processes.__path__, "")}'
_WORKING = tuple(f'File "{os.path.join(each, "")}' for each in _HERE)
_THREADS = f'File "{threading.__file__}"'
_STOPPED = {"T": "it is stopped", "t": "a debugger has stopped it"}


def register(fd: int) -> None:
    """Have this process, a worker, write its stacks to file *fd* when it is asked to."""
    if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        logger.warning("no stacks can be had: signal %d is taken by the worker's own code", SIGNAL)
        return
    # The parent empties the file each time: it is written at its end, wherever that is.
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    faulthandler.register(SIGNAL, file=fd, all_threads=True)


def dump(process: Process, fd: int, timeout: float = 2.0) -> str:
    """Return the stacks of *process*, which has registered file *fd*.

    One thread at a time may ask for those of one process.

    Returns:
        The stacks of its threads, as :mod:`faulthandler` writes them, less the frames in which
        the worker calls the task; when it does not answer, one line in parentheses that says why.
    """
    if why := _silent(process):
        return why
    os.ftruncate(fd, 0)
    process.signal(SIGNAL)
    deadline, size, same = monotonic() + timeout, 0, 0
    while same < _LOOKS and monotonic() < deadline and process.ended(_LOOK) is None:
        before, size = size, os.fstat(fd).st_size
        whole = size and size == before and os.pread(fd, 1, size - 1) == b"\n"
        same = same + 1 if whole else 0
    if text := os.pread(fd, size, 0).decode(errors="replace"):
        shown = map(_without_machinery, text.strip().split("\n\n"))
        return "\n\n".join(filter(None, shown)) + "\n"
    what = f"it did not answer within {timeout:g} s; a task may have taken signal {SIGNAL}"
    return _silent(process) or _reason(process, what)


def _without_machinery(stack: str) -> str:
    """Return the stack of a thread less the worker's frames, or nothing if the worker began it."""
    title, *frames = stack.splitlines()
    start = next((n for n, each in enumerate(frames) if _STARTING in each), len(frames))
    end = start
    while end and _THREADS in frames[end - 1]:
        end -= 1
    if 0 < end < start and _works(frames[end - 1]):
        return ""
    end = start
    while end and _works(frames[end - 1]):
        end -= 1
    return "\n".join((title, *frames[: end or start]))  # in no task it is shown where it waits


def _works(frame: str) -> bool:
    """Return whether a frame is one of the worker's own."""
    return any(each in frame for each in _WORKING)


def _silent(process: Process) -> str:
    """Return why *process* cannot answer, or nothing if it should."""
    if exit_ := process.ended(0):
        how = "" if exit_.code is None else f" ({_how(exit_.code)})"
        return _reason(process, f"it has ended{how}")
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return _reason(process, "it has ended")
    fields = {name: value.strip() for name, _, value in (each.partition(":") for each in lines)}
    if state := _STOPPED.get(fields["State"][0]):
        return _reason(process, state)
    # Who does not catch the signal would be ended by it.
    if not int(fields["SigCgt"], 16) >> (SIGNAL - 1) & 1:
        return _reason(process, "it is starting, or its own code has put back the signal's default")
    return ""


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _reason(process: Process, why: str) -> str:
    return f"(no stacks of {process.name or 'process'} {process.pid}: {why})"
