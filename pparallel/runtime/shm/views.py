"""Views of blocks, which let their block go when the last reference to them dies.

A slice of the mapping itself would not do: what is made of a slice refers to the mapping behind
it and outlives the slice. Everything made of a ctypes array keeps that very array alive.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from pparallel.runtime.shm.ledger import MOVING, PID
from pparallel.runtime.shm.sizes import CAPACITIES

if TYPE_CHECKING:
    from pparallel.runtime.shm.ledger import Ledger


class View:
    """A block that this process holds, as memory."""

    ledger: Ledger | None = None
    slot: int

    # The names are arguments, for at the end of the program those of the module may be gone.
    def __del__(self, getpid: Any = os.getpid, moving: int = MOVING) -> None:
        ledger = self.ledger
        if ledger is None:
            return
        slot = self.slot
        holder = ledger.holders[slot]
        # In a child that was forked the block is the parent's.
        if holder == (pid := getpid()):
            ledger.codes[slot] = ledger.classes[slot]
        elif holder == moving | pid:
            ledger.gone.add(slot)


# By class, for all arenas: ctypes takes long to make a type, and types are not freed at once.
_kinds: list[Any] = [None] * len(CAPACITIES)


def _kind(number: int) -> Any:
    array = ctypes.c_ubyte * CAPACITIES[number]
    kind = type(f"View{CAPACITIES[number]}", (View, array), {})
    _kinds[number] = kind
    return kind


def lease(ledger: Ledger, slot: int) -> Any:
    """Return a view of a block that this process holds already."""
    number = ledger.classes[slot]
    view = (_kinds[number] or _kind(number)).from_buffer(ledger.memory, ledger.offsets[slot])
    view.slot, view.ledger = slot, ledger
    return view


def adopt(ledger: Ledger, slot: int, turn: int, pid: int) -> Any:
    """Return a view of a block that a message brought; it is this process's from now on.

    Raises:
        RuntimeError: the block is on its way to nobody.
    """
    # Looked at first: a view of a block that this process holds already would let it go.
    _expect(ledger, slot, turn)
    view = lease(ledger, slot)
    ledger.holders[slot] = pid
    return view


def take(ledger: Ledger, slot: int, turn: int, pid: int) -> None:
    """Have a block that a message brought held by this process, without a view.

    Raises:
        RuntimeError: the block is on its way to nobody.
    """
    _expect(ledger, slot, turn)
    ledger.holders[slot] = pid


def _expect(ledger: Ledger, slot: int, turn: int) -> None:
    if not ledger.on_its_way(slot, turn):
        holder = ledger.holders[slot] & PID
        raise RuntimeError(f"block {slot}, last held by process {holder}, is not on its way here")
