"""Ports for a store or a world that has to be given some."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

_NEVER_GIVEN = 15_000, 32_000  #: ports below those that Linux gives by itself


def free_ports() -> tuple[int, int]:
    """Return two ports that nobody uses now.

    The system gives none of them to a connection that any other process opens meanwhile.
    """
    found: list[int] = []
    while len(found) < 2:
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", random.SystemRandom().randrange(*_NEVER_GIVEN)))
            port = tried.getsockname()[1]
            found += [port] if port not in found else []
    one, other = found
    return one, other
