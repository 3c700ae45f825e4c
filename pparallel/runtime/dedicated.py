"""Threads that serve one request at a time, and nobody else's: what they are given may block."""

from __future__ import annotations

import threading

_here = threading.local()


def mark() -> None:
    """Say that the calling thread serves one request at a time: a function may run in it."""
    _here.marked = True


def marked() -> bool:
    """Return whether the calling thread is such a one."""
    return getattr(_here, "marked", False)
