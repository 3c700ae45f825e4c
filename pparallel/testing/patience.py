"""Waiting for a condition, instead of sleeping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE = 20.0  #: seconds after which a condition that should have come true never will


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until *condition* holds, or fail saying *what* did not happen."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} within {PATIENCE} s"
        threading.Event().wait(0.002)
