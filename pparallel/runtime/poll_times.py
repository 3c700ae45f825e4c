"""For how long to wait for descriptors at once.

The system's calls take an int of milliseconds, and raise an ``OverflowError`` where a program says
more than some 24 days, as it does that means for ever. Who has waited for so long in vain looks,
and waits again.
"""

from __future__ import annotations

import math

LONGEST = 1 << 20  #: seconds, some 12 days


def seconds(timeout: float | None) -> float | None:
    """Return what a wait of *timeout* seconds takes at once; ``None``: without end."""
    return None if timeout is None else min(timeout, LONGEST)


def milliseconds(timeout: float | None) -> int | None:
    """Return the same in milliseconds, not less than asked."""
    return None if timeout is None else math.ceil(min(timeout, LONGEST) * 1000)
