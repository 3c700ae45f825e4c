"""Descriptors that another process of the same user opens by itself, through ``/proc``."""

from __future__ import annotations

import errno
import os
from typing import TypeAlias

Handle: TypeAlias = tuple[int, int, int, int]  #: pid, descriptor, device, inode


def handle(descriptor: int) -> Handle:
    """Return what another process finds the file by, while this one has it open."""
    status = os.fstat(descriptor)
    return os.getpid(), descriptor, status.st_dev, status.st_ino


def reopened(found: Handle, flags: int, what: str) -> int:
    """Return a descriptor of this process's own.

    Args:
        found: what :func:`handle` returned.
        flags: as for ``os.open``.
        what: was sent by the handle, for the message.

    Raises:
        FileNotFoundError: the process that sent the handle has ended or has closed the file.
        OSError: there is no descriptor left, or that process is another user's.
    """
    pid, number, device, inode = found
    gone = f"process {pid}, which sent {what}, has ended or has let go of it"
    gone += ": keep it until it has arrived"
    try:
        descriptor = os.open(f"/proc/{pid}/fd/{number}", flags | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, gone) from error
    status = os.fstat(descriptor)
    # The number may by now stand for another file.
    if (status.st_dev, status.st_ino) != (device, inode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, gone)
    return descriptor
