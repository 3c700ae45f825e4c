"""Threads of a transport in which a function of the user may run, so that no other has to.

One that is *alone* serves one request at a time, and nobody else waits for it. One that *leads*
receives for a whole member: it may run what is quick, and passes its role on before it blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

ELSEWHERE, ALONE, LEADING = range(3)  #: what the calling thread is

_here = threading.local()


def mark_alone() -> None:
    """Say that the calling thread serves one request at a time."""
    _here.kind, _here.pass_on = ALONE, None


def mark_leading(pass_on: Callable[[], None]) -> None:
    """Say that the calling thread receives for others, until *pass_on* has another one do so."""
    _here.kind, _here.pass_on = LEADING, pass_on


def kind() -> int:
    """Return what the calling thread is."""
    found: int = getattr(_here, "kind", ELSEWHERE)
    return found


def about_to_block() -> None:
    """Pass the role of the calling thread on, if it has one."""
    pass_on: Callable[[], None] | None = getattr(_here, "pass_on", None)
    if pass_on is not None:
        _here.kind, _here.pass_on = ALONE, None
        pass_on()
