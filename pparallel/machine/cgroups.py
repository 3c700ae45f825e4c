"""The limits that control groups (v1 and v2) put on this process.

A group's limit holds for the groups inside it too, so that the lowest one on the way up counts. In
a container the path that the kernel tells may be that of the host: what is not there is passed by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path("/")

_UNLIMITED = 2**60  #: v1 says "no limit" with the largest number of pages there is


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

    Args:
        root: the folder that holds ``proc`` and ``sys``.
    """
    found = list(_memory(_folders(root, None), "memory.max", "memory.current"))
    v1 = _folders(root, "memory")
    found += _memory(v1, "memory.limit_in_bytes", "memory.usage_in_bytes")
    return min(found, default=None)


def _memory(folders: Iterable[Path], limit: str, usage: str) -> Iterator[tuple[int, int]]:
    for each in folders:
        allowed, used = _number(each / limit), _number(each / usage)
        if allowed is not None and allowed < _UNLIMITED:
            yield allowed, used or 0


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
