"""What becomes of the tasks of a worker that has died."""

from __future__ import annotations

from typing import NamedTuple

from pparallel.runtime.pools.board import Place
from pparallel.runtime.pools.lots import Lot


class Fate(NamedTuple):
    """What became of one lot.

    Attributes:
        lot: the lot.
        running: the first place of the tasks of which one was running; those before, from
            ``lot.reported`` on, had ended, and nobody will know how.
        waiting: the first place of the tasks that had not started.
    """

    lot: Lot
    running: int
    waiting: int


def fate(lot: Lot, place: Place) -> Fate:
    """Return what became of *lot* when its worker died at *place*."""
    if lot.number > place.lot:
        return Fate(lot, lot.reported, lot.reported)  # not begun: nothing is lost
    if lot.number < place.lot:
        return Fate(lot, lot.limit, lot.limit)  # ended, and what it said is lost
    return Fate(lot, max(lot.reported, place.first), min(lot.limit, place.first + place.span))
