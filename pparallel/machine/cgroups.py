"""The limits that control groups (v1 and v2) put on this process.

A group's limit holds for the groups inside it too, so that the lowest one on the way up counts. In
a container the path that the kernel tells may be that of the host: what is not there is passed by.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")

_UNLIMITED = 2**60  #: v1 says "no limit" with the largest number of pages there is


class _Names(NamedTuple):
    """What the files that tell of a group's memory are called, and what of it is file cache."""

    limit: str
    usage: str
    cache: tuple[str, ...]


_V2 = _Names("memory.max", "memory.current", ("active_file", "inactive_file"))
_V1 = _Names(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
)


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return how many cores' time this process may use; ``None``: there is no limit.

    Args:
        root: the folder that holds ``proc`` and ``sys``.
    """
    found = [_quota_v2(each / "cpu.max") for each in _folders(root, None)]
    found += [_quota_v1(each) for each in _folders(root, "cpu")]
    return min((each for each in found if each is not None), default=None)


def memory_limit(root: Path = ROOT) -> tuple[int, int] | None:
    """Return the lowest limit in bytes and how many of them are in use; ``None``: no limit.

    What files have in memory is not in use: the kernel gives it up as soon as somebody needs it.

    Args:
        root: the folder that holds ``proc`` and ``sys``.
    """
    return min(_memory(root), default=None)


def memory_left(root: Path = ROOT) -> int | None:
    """Return how many bytes may still be had within all limits; ``None``: no limit.

    Args:
        root: the folder that holds ``proc`` and ``sys``.
    """
    return min((max(allowed - used, 0) for allowed, used in _memory(root)), default=None)


def _memory(root: Path) -> Iterator[tuple[int, int]]:
    for controller, names in ((None, _V2), ("memory", _V1)):
        for each in _folders(root, controller):
            allowed = _number(each / names.limit)
            if allowed is not None and allowed < _UNLIMITED:
                used = _number(each / names.usage) or 0
                yield allowed, max(used - _cached(each, names.cache), 0)


def _cached(folder: Path, counters: tuple[str, ...]) -> int:
    entries = (line.split() for line in _read(folder / "memory.stat").splitlines())
    return sum(int(each[1]) for each in entries if each and each[0] in counters)


def _quota_v2(path: Path) -> float | None:
    quota, _, period = _read(path).partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _folders(root: Path, controller: str | None) -> list[Path]:
    """Return the folders of this process's groups, from the innermost up.

    Args:
        root: the folder that holds ``proc`` and ``sys``.
        controller: of v1; ``None``: those of v2.
    """
    found: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, names, path = (*line.split(":", 2), "", "")[:3]
        if controller is None and number == "0" and not names:
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif controller is not None and controller in names.split(","):
            mounts = [root / "sys/fs/cgroup" / names, root / "sys/fs/cgroup" / controller]
        else:
            continue
        for mount in mounts:
            inner = mount / path.strip("/")
            found += [each for each in (inner, *inner.parents) if each.is_relative_to(mount)]
    return list(dict.fromkeys(each for each in found if each.is_dir()))


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text.removeprefix("-").isdigit() else None


def _read(path: Path) -> str:
    """Return the text of a file, empty where it is not there or not for us."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
