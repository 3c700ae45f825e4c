"""Wait for a message: look a few times, then block.

Being woken on another core costs ten times what a message costs. Polling with ``sched_yield``
lets the other end run if it shares the core.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

LOOKING = 6e-5  #: seconds of looking before blocking
_MISSES = 4  #: after so many times in vain it is not tried
_AGAIN = 32  #: but every so many waits
_SOON = 2e-5  #: seconds after giving up within which it would have paid to look longer


class Waiter:
    """Decides how long to look, by whether it paid lately."""

    def __init__(self) -> None:
        self._misses = 0
        self._waits = 0

    def wait(self, look: Callable[[], T | None], block: Callable[[], T | None]) -> T | None:
        """Return what *look* returns once that is not None, or else what *block* returns."""
        self._waits += 1
        if self._misses >= _MISSES and self._waits % _AGAIN:
            began = perf_counter()
            found = block()
        else:
            began = perf_counter()
            end = began + LOOKING
            while began < end:
                found = look()
                if found is not None:
                    self._misses = 0
                    return found
                os.sched_yield()
                began = perf_counter()
            self._misses += 1
            found = block()
        if perf_counter() - began < _SOON:
            self._misses = 0
        return found
