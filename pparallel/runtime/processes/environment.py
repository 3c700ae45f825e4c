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

#: The C library reads it once, when a program begins.
_TUNABLES = b"GLIBC_TUNABLES"
#: From how many bytes memcpy writes past the caches, as it should where another process reads. By
#: default most of the last cache, which is the whole machine's: 100 MB and more on large servers.
_THRESHOLD = b"glibc.cpu.x86_non_temporal_threshold"
_BYTES = 256 << 10


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


def at_start(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return what an interpreter is started with that is to live with *environment*.

    Its large copies are then written past the caches, unless the program says itself from where.
    """
    told = environment.get(_TUNABLES, b"")
    if _THRESHOLD in told or os.uname().machine != "x86_64":
        return dict(environment)
    each = b"%s=%d" % (_THRESHOLD, _BYTES)
    return {**environment, _TUNABLES: b":".join(filter(None, (told, each)))}


def after_start(environment: Mapping[bytes, bytes]) -> None:
    """Take back what :func:`at_start` added, which the programs that this one starts need not."""
    if _TUNABLES in environment:
        os.environb[_TUNABLES] = environment[_TUNABLES]
    else:
        os.environb.pop(_TUNABLES, None)
