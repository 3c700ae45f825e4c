"""Distances that are sums of two legs, one of each device, as those of a star through its middle.

What is on one device then costs the same wherever the rest is, and so the cost of an assignment is
a sum over the devices. Any distances among up to three devices are such sums, and those by kind
among any number: between two GPUs one, between the CPU and a GPU another.
"""

from __future__ import annotations

from collections.abc import Sequence

#: By how much a distance may differ from the sum of its legs, as a share of the longest.
_TOLERANCE = 1e-12


def legs(spans: Sequence[Sequence[float]]) -> tuple[float, ...] | None:
    """Return each device's leg, or ``None`` if the distances are no sums of legs.

    Args:
        spans: [m, m] symmetric distances as shares of the longest; the diagonal is 0.
    """
    count = len(spans)
    if count == 1:
        return (0.0,)
    if count == 2:
        return (spans[0][1] / 2,) * 2
    # Rounded, so that devices that are alike have the same leg to the last bit.
    first = round((spans[0][1] + spans[0][2] - spans[1][2]) / 2, 14)
    found = (first, *(round(spans[0][at] - first, 14) for at in range(1, count)))
    off = (
        abs(found[here] + found[there] - spans[here][there])
        for here in range(count)
        for there in range(here)
    )
    return found if max(off) <= _TOLERANCE else None
