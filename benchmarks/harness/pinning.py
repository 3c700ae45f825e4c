"""Which cores the two ends may use: what a wake-up costs depends on it more than on the code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from benchmarks.harness.processes import descendants

PINS = {
    "one": "this process and its workers on one core",
    "apart": "this process on one core, its workers on another",
    "two": "all on the same two cores",
}


def possible(pins: tuple[str, ...], cores: int) -> list[str]:
    """Return those of *pins* that differ on a machine with so many cores."""
    return list(pins) if cores > 1 else list(pins[:1])


class Pinning:
    """One way of pinning, put on every process and thread that there is when `apply` is called."""

    def __init__(self, how: str, cores: set[int]) -> None:
        first, second, *_ = [*sorted(cores), min(cores)]
        self._parent, self._workers = {
            "one": ({first}, {first}),
            "apart": ({first}, {second}),
            "two": ({first, second}, {first, second}),
        }[how]

    def apply(self) -> None:
        """Pin this process and all below it; processes that start later inherit it."""
        pin(os.getpid(), self._parent)
        for pid in descendants():
            pin(pid, self._workers)


@contextmanager
def pinned(how: str) -> Iterator[Pinning]:
    """Pin, and give all cores back afterwards."""
    cores = os.sched_getaffinity(0)
    try:
        yield Pinning(how, cores)
    finally:
        for pid in (os.getpid(), *descendants()):
            pin(pid, cores)


def pin(pid: int, cores: set[int]) -> None:
    """Pin each thread: the call for a process would reach its main thread alone."""
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cores)
