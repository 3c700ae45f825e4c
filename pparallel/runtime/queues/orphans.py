"""Blocks of messages that never will arrive.

A process may be killed after it has said that a block is on its way and before its ticket is in
the pipe, or after it has taken the ticket out and before it holds the block: a matter of
microseconds. Such a block is on its way for ever. Those whose tickets are in the pipe are not.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import time

from pparallel.runtime.queues.ends import Ends
from pparallel.runtime.queues.tickets import SIZE, head_of
from pparallel.runtime.shm.ledger import LEASED, TRANSIT

AGE = 5.0  #: seconds after which a block without a ticket is nobody's

_EVERY = 0.25
_NONBLOCK = 2  #: SPLICE_F_NONBLOCK

_libc = ctypes.CDLL(None, use_errno=True)


class Orphans:
    """Frees them, while somebody waits for memory."""

    def __init__(self) -> None:
        self._since: dict[tuple[int, int], float] = {}
        self._next = time.monotonic() + _EVERY

    def free(self, ends: Ends) -> None:
        """Free what was an orphan each time this looked for ``AGE`` seconds."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY
        ledger = ends.arena.ledger
        # Listed before the tickets are: one that is sent in between has its ticket.
        sent = {
            (slot, ledger.turns[slot])
            for slot in ledger.all_with(LEASED)
            if ledger.holders[slot] & TRANSIT
        }
        try:
            orphans = sent - _expected(ends)
        except OSError:  # no descriptors, or no pipe as large: there is no telling
            return
        self._since = {each: self._since.get(each, now) for each in orphans}
        for (slot, turn), since in self._since.items():
            if now - since >= AGE and ledger.on_its_way(slot, turn):
                ledger.release(slot)


def _expected(ends: Ends) -> set[tuple[int, int]]:
    """Return the slots and turns of the blocks whose tickets are in the pipe.

    Raises:
        OSError: there can be no copy of all tickets.
    """
    tickets = _copy_of(ends.tickets)
    heads = [head_of(tickets[at : at + SIZE]) for at in range(0, len(tickets), SIZE)]
    return {block for head in heads for block in ends.parcels.blocks(head)}


def _copy_of(pipe: int) -> bytes:
    """Return what is in *pipe*, and leave it there."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        nbytes = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, nbytes)
        found = _libc.tee(pipe, writing, nbytes, _NONBLOCK)
        return os.read(reading, found) if found > 0 else b""
    finally:
        os.close(reading)
        os.close(writing)
