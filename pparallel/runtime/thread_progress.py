"""Whether another thread of this process gets on, waits to run, or is blocked."""

from __future__ import annotations

from typing import NamedTuple

#: Seconds between two looks at a thread. One that waits for the GIL wakes at each switch interval
#: (5 ms) to ask for it; one that is blocked does not wake at all.
WINDOW = 0.012

COMPUTED = 1_000_000  #: nanoseconds of CPU time that no waiting for the GIL takes


class Progress(NamedTuple):
    """How far a thread has come.

    Attributes:
        state: its state as ``/proc`` has it: ``R`` runs or waits for a CPU, ``S`` sleeps.
        cpu: CPU time that it has used, in nanoseconds.
        slices: how often it was given a CPU.
    """

    state: str
    cpu: int
    slices: int


def look(native_id: int) -> Progress | None:
    """Return how far a thread has come; ``None`` where the system does not say."""
    task = f"/proc/self/task/{native_id}"
    try:
        with open(f"{task}/stat", "rb") as stat, open(f"{task}/schedstat", "rb") as schedstat:
            state = stat.read().rpartition(b") ")[2][:1].decode()
            cpu, _, slices = schedstat.read().split()
    except (OSError, ValueError):
        return None
    return Progress(state, int(cpu), int(slices))


def is_under_way(earlier: Progress, later: Progress) -> bool:
    """Return whether a thread did something between two looks, or was blocked in doing it.

    A thread that only waited for the GIL or for a CPU was not: what it is about to do has not
    begun.
    """
    if later.cpu - earlier.cpu >= COMPUTED:
        return True
    asleep = earlier.state in "SD" and later.state in "SD"
    return asleep and later.slices == earlier.slices
