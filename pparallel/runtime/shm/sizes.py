"""Size classes: powers of two up to 1 MB, then eighths of one, which waste an eighth at most."""

from __future__ import annotations

SMALLEST = 64  #: bytes
LARGEST = 1 << 36
EVEN = 1 << 20  #: up to here a class is a power of two

_FIRST = SMALLEST.bit_length() - 1
_TURN = EVEN.bit_length() - 1
_EVENS = _TURN - _FIRST  #: the class of blocks of 1 MB


def class_of(nbytes: int) -> int:
    """Return the number of the smallest class that holds *nbytes*, which is at most ``LARGEST``."""
    if nbytes <= EVEN:
        return (nbytes - 1).bit_length() - _FIRST if nbytes > SMALLEST else 0
    half = (nbytes - 1).bit_length() - 1
    eighth = half - 3
    return _EVENS + ((half - _TURN) << 3) + ((nbytes - 1 - (1 << half)) >> eighth) + 1


def _capacities() -> list[int]:
    found = [1 << power for power in range(_FIRST, _TURN + 1)]
    while found[-1] < LARGEST:
        half = found[-1]
        found += [half + (half >> 3) * eighths for eighths in range(1, 9)]
    return found


CAPACITIES = _capacities()  #: bytes of a block, by class
