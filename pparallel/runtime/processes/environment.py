"""The environment of children: this process's, less what is said to this process alone."""

from __future__ import annotations

import os
from collections.abc import Mapping

#: what torchrun, or the launcher of a job, tells one process: its place in the job
_PLACE = frozenset(
    {
        b"RANK",
        b"LOCAL_RANK",
        b"GROUP_RANK",
        b"ROLE_RANK",
        b"ROLE_NAME",
        b"WORLD_SIZE",
        b"LOCAL_WORLD_SIZE",
        b"GROUP_WORLD_SIZE",
        b"ROLE_WORLD_SIZE",
    }
)
_PREFIXES = (b"MASTER_", b"TORCHELASTIC_", b"PPARALLEL_")


def inherited() -> dict[bytes, bytes]:
    """Return what a child gets, as the system has it."""
    return {
        name: value
        for name, value in os.environb.items()
        if name not in _PLACE and not name.startswith(_PREFIXES)
    }


def child_environment() -> dict[str, str]:
    """Return what a child gets unless it is told otherwise, to be added to."""
    return {os.fsdecode(name): os.fsdecode(value) for name, value in inherited().items()}


def encoded(environment: Mapping[str, str] | None) -> dict[bytes, bytes]:
    """Return *environment* as the system has it; ``None``: what a child :func:`inherited`."""
    if environment is None:
        return inherited()
    return {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}


def become(environment: Mapping[bytes, bytes], current: Mapping[bytes, bytes]) -> None:
    """Make *environment* this process's own instead of *current*, with few changes."""
    for name in current.keys() - environment.keys():
        del os.environb[name]
    for name, value in environment.items():
        if current.get(name) != value:
            os.environb[name] = value
