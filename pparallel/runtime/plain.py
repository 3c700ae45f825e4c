"""Plain data: what may travel as it is, written by :mod:`marshal` between equal interpreters.

Nothing in it can be changed, and so nothing in it can be shared by mistake.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

#: types whose values cannot be changed
PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None)})
_TUPLES = frozenset({tuple})


def are_plain(items: Iterable[object]) -> bool:
    """Return whether all *items* are plain, or all are tuples of what is."""
    kinds = set(map(type, items))
    if kinds <= PLAIN:
        return True
    tuples: Iterable[Iterable[object]] = items  # type: ignore[assignment] # as the next line says
    return kinds == _TUPLES and set(map(type, chain.from_iterable(tuples))) <= PLAIN
