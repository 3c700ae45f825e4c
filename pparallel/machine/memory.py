"""How much memory there is for this process."""

from __future__ import annotations

from pathlib import Path

from pparallel.machine import cgroups


def meminfo(root: Path = cgroups.ROOT) -> dict[str, int]:
    """Return what ``/proc/meminfo`` says, in bytes.

    Args:
        root: the folder that holds ``proc`` and ``sys``.
    """
    lines = (root / "proc/meminfo").read_text().splitlines()
    entries = (line.split(":", 1) for line in lines if ":" in line)
    return {name: int(value.split()[0]) * 1024 for name, value in entries}


def total(root: Path = cgroups.ROOT) -> int:
    """Return how many bytes this process could ever have: the machine's, or its groups' limit."""
    limit = cgroups.memory_limit(root)
    machine = meminfo(root)["MemTotal"]
    return machine if limit is None else min(machine, limit[0])


def available(root: Path = cgroups.ROOT) -> int:
    """Return how many bytes this process could have now."""
    left = cgroups.memory_left(root)
    machine = meminfo(root)["MemAvailable"]
    return machine if left is None else min(machine, left)
