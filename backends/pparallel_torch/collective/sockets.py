"""Ends gloo's connections from outside, for gloo offers no way to end an operation."""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Collection
from contextlib import suppress
from typing import Any

_DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"


def shut_down(addresses: Collection[bytes]) -> int:
    """Have the connections of this process that begin or end at one of *addresses* end.

    Nothing more can be read from them, which gloo takes as the ends of those that they lead to: it
    closes them. To be written to they stay open till then: gloo forgets a message whose first
    bytes it fails to write, and waits for it in vain.

    Args:
        addresses: what gloo's members tell one another: each has the bytes of the address where
            its member listens.

    Returns:
        How many there were.
    """
    count = 0
    for each in os.listdir(_DESCRIPTORS):
        with suppress(OSError):  # closed meanwhile, or connected to nothing
            # A duplicate stays what it is, whatever its original's number becomes.
            duplicate = os.dup(int(each))
            try:
                count += _is_shut_down(duplicate, addresses)
            finally:
                os.close(duplicate)
    return count


def _is_shut_down(descriptor: int, addresses: Collection[bytes]) -> bool:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return False
    found = socket.socket(fileno=descriptor)
    try:
        belongs = _belongs(found, addresses)
        if belongs:
            found.shutdown(socket.SHUT_RD)
        return belongs
    finally:
        found.detach()


def _belongs(found: socket.socket, addresses: Collection[bytes]) -> bool:
    if found.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    if found.type != socket.SOCK_STREAM:
        return False
    ends = [_packed(found.family, name) for name in (found.getsockname(), found.getpeername())]
    return any(end in address for end in ends for address in addresses)


def _packed(family: int, name: tuple[Any, ...]) -> bytes:
    """Return the part of a socket's address that follows its family, as the system has it."""
    host, port, *flow = name
    middle: bytes = flow[0].to_bytes(4, "big") if flow else b""
    there: bytes = port.to_bytes(2, "big")
    return there + middle + socket.inet_pton(family, host.partition("%")[0])
