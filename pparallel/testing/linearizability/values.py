"""Values of which it shows who pushed them, and whether they are whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Large(NamedTuple):
    """Stands in a history for an array all of whose entries are *number*."""

    number: int
    nbytes: int


class Torn(NamedTuple):
    """Stands for an array that nobody pushed: its entries, with how many there are of each."""

    entries: tuple[tuple[int, int], ...]


def made(value: Hashable) -> Any:
    """Return what is pushed where a history says *value*."""
    return filled(value.nbytes, value.number) if isinstance(value, Large) else value


def filled(nbytes: int, number: int = 0) -> npt.NDArray[np.int64]:
    """Return an array with entries that are all the same."""
    import numpy as np

    return np.full(nbytes // 8, number, np.int64)


def told(value: Any) -> Hashable:
    """Return what a history says where *value* was found."""
    if not hasattr(value, "dtype"):
        assert isinstance(value, Hashable)
        return value
    number = int(value[0])
    if (value == number).all():
        return Large(number, value.nbytes)
    return Torn(tuple(Counter(value.tolist()).most_common(5)))
