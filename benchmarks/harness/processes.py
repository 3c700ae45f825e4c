"""The tree of processes that a benchmark consists of: who is in it, and the processor's time."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_OF_THE_CHILDREN = slice(13, 15)  # cutime and cstime, counted from behind the command's name
_GONE = (FileNotFoundError, ProcessLookupError)


def descendants(pid: int | None = None) -> Iterator[int]:
    """Yield every process below this one, or below *pid*."""
    for listing in Path(f"/proc/{pid or os.getpid()}/task").glob("*/children"):
        with suppress(*_GONE):
            for child in map(int, listing.read_text().split()):
                yield child
                yield from descendants(child)


def cpu_seconds() -> float:
    """Return what this process and all below it have used, those that have ended included."""
    return time.process_time() + _seconds_below()


class Stopwatch:
    """The processor's time since it was made; what reading it costs is not part of it."""

    def __init__(self) -> None:
        self._below = _seconds_below()
        self._own = time.process_time()

    def read(self) -> float:
        """Return what this process and all below it have used."""
        own = time.process_time() - self._own
        return own + _seconds_below() - self._below


def machine_seconds() -> float:
    """Return what the whole machine has used, and what its host withheld from it."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS


def memory(pid: int) -> int:
    """Return the bytes that a process holds, pages shared by n processes counted as a nth."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/{pid}/smaps_rollup tells no Pss")


def _seconds_below() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + sum(_used_by(pid) for pid in descendants())


def _used_by(pid: int) -> float:
    """Return the seconds of another process: its own to the nanosecond, its dead children's not."""
    try:
        clock = ((~pid) << 3) | 2  # the clock of a whole process, as clock_getcpuclockid makes it
        own = time.clock_gettime(clock)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (*_GONE, OSError):  # it has ended, and is counted with its parent's children
        return 0.0
    return own + sum(map(int, fields[_OF_THE_CHILDREN])) / _TICKS
