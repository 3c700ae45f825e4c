"""The arena: blocks of shared memory, given out and taken back."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from pparallel.errors import ClosedError
from pparallel.runtime.forks import Inherited
from pparallel.runtime.memory import Mapping
from pparallel.runtime.memory import arena as memory
from pparallel.runtime.shm.block import Block, Ticket
from pparallel.runtime.shm.ledger import DATA, LEASED, PID, Ledger
from pparallel.runtime.shm.mutex import Mutex
from pparallel.runtime.shm.room import Room
from pparallel.runtime.shm.sizes import CAPACITIES, LARGEST, class_of
from pparallel.runtime.shm.views import adopt

SMALLEST = 1 << 14  #: bytes of the smallest block, where nobody said
PATIENCE = 1.0  #: seconds to wait for a lock that a stopped process may hold


@dataclass(frozen=True)
class Usage:
    """What an arena holds.

    Attributes:
        leased: bytes of the blocks that somebody holds.
        free: bytes of the blocks that nobody holds and that are kept in memory for the next.
        budget: bytes that the two may be together.
        blocks: how many blocks somebody holds.
    """

    leased: int
    free: int
    budget: int
    blocks: int


class Arena:
    """Blocks of shared memory in a sparse file without a name, mapped once by each process.

    One process allocates, or any one when the arena is *shared*. Whoever holds a block lets it go
    by writing one byte: no message, no lock. Freed blocks are used again, for their pages are
    there already. Any thread may use it.

    Attributes:
        fd: the file's descriptor, which another process attaches to; -1 where this one keeps none.
        shortage: why there was no room when there last was none.
        warned: it was logged that there was none.
    """

    def __init__(self, ledger: Ledger, descriptor: int, owner: int) -> None:
        self.fd = descriptor
        self.shortage = ""
        self.warned = False
        self.ledger = ledger
        self._room = Room(ledger)
        self._owner = owner
        self._smallest = CAPACITIES[ledger.floor]
        self._floor = ledger.floor
        self._mutex = Mutex(ledger.mutex) if ledger.shared else None
        self._patience = PATIENCE
        self._closed = False
        # A finalizer, or a signal's handler, that allocates in the middle of an allocation of its
        # own thread must neither wait for itself nor find the ledger half changed.
        self._lock = threading.RLock()
        self._busy = False
        _arenas.add(self)

    @classmethod
    def create(
        cls,
        name: str = "pparallel",
        budget: int | None = None,
        shared: bool = False,
        smallest: int = SMALLEST,
    ) -> Arena:
        """Return a new arena; :meth:`close` it when it is of no more use.

        Args:
            name: what the file is called in ``/proc``.
            budget: bytes of memory that it may take; None: half of what this process may use.
            shared: whether other processes that attach to it may allocate too.
            smallest: bytes of the smallest block.

        Raises:
            OSError: there is no descriptor left, no room for it among the addresses, or no such
                thing on this platform.
        """
        budget = memory.share() if budget is None else budget
        descriptor = memory.create_file(name)
        try:
            mapped = memory.grown(descriptor, DATA, memory.span(budget))
            ledger = Ledger.make(mapped, budget, shared=shared, smallest=class_of(smallest))
            if shared:
                Mutex.make(ledger.mutex)
            return cls(ledger, descriptor, os.getpid())
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def attach(cls, fd: int) -> Arena:
        """Return the arena whose descriptor this is; the caller may close it then.

        Raises:
            ValueError: it is no arena's.
            OSError: there is no room for it among this process's addresses, or no descriptor left.
        """
        span = Ledger.span_of(os.pread(fd, 16, 0))
        ledger = Ledger(Mapping(fd, span))
        # A shared one is passed on by whoever has it.
        return cls(ledger, os.dup(fd) if ledger.shared else -1, 0)

    def allocate(self, nbytes: int) -> Block | None:
        """Return a block of at least *nbytes*, None where there is no room for it.

        Raises:
            ClosedError: after :meth:`close`.
        """
        slot = self.take(nbytes, os.getpid())
        return None if slot < 0 else Block(self.ledger, slot, nbytes)

    def take(self, nbytes: int, pid: int) -> int:
        """Return the slot of a block, leased to this process, *pid*; -1 where there is no room."""
        if nbytes > LARGEST:
            self.shortage = "no block is as large"
            return -1
        kind = self._floor if nbytes <= self._smallest else class_of(nbytes)
        with self._lock:
            ledger = self.ledger
            if self._busy:
                self.shortage = "this thread was interrupted in the middle of allocating"
                return -1
            if not self._enter(pid):
                return -1
            self._busy = True
            try:
                slot = ledger.find(kind)
                if slot >= 0 and ledger.backed[slot]:
                    ledger.claim(slot, pid)
                else:
                    slot = self._room.make(kind, pid)
                    self.shortage = self._room.shortage
                return slot
            finally:
                self._busy = False
                self._leave()

    def adopt(self, ticket: Ticket) -> memoryview:
        """Return a block that was sent as memory; it is let go when nothing refers to that.

        Raises:
            RuntimeError: it has been adopted or dropped before.
        """
        slot, turn, nbytes = ticket
        return memoryview(adopt(self.ledger, slot, turn, os.getpid())).cast("B")[:nbytes]

    def reclaim(self, pid: int) -> None:
        """Free all that the process *pid*, which has died, held or had on its way.

        What it has sent and is still to be read must have been adopted before.
        """
        with self._locked(os.getpid()) as held:
            if held:
                self._room.free_where(lambda holder: holder & PID == pid)

    def trim(self) -> int:
        """Give the memory of free blocks back to the machine; return how many bytes."""
        with self._locked(os.getpid()) as held:
            return self._room.trim() if held else 0

    def usage(self) -> Usage:
        """Return what it holds now; roughly, while other processes use it."""
        ledger = self.ledger
        slots = ledger.all_with(LEASED)
        leased = sum(CAPACITIES[ledger.classes[slot]] for slot in slots)
        free = max(ledger.resident - leased, 0)
        return Usage(leased, free, ledger.budget, len(slots))

    def close(self) -> None:
        """Stop using it; safe to call again.

        Views that live stay valid: the memory is unmapped with the last of them.
        """
        with self._lock:
            if self._closed:
                return
            if os.getpid() == self._owner:
                self.trim()
            self._closed = True
            # Views that live have it still, and nobody else.
            del self.ledger, self._room
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("ledger", "_room"):
            raise ClosedError("the arena")
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=self)

    @contextmanager
    def _locked(self, pid: int) -> Iterator[bool]:
        with self._lock:
            if self._closed:
                raise ClosedError("the arena")
            if self._busy or not self._enter(pid):
                yield False
                return
            self._busy = True
            try:
                yield True
            finally:
                self._busy = False
                self._leave()

    def _enter(self, pid: int) -> bool:
        if self._mutex is None:
            self.shortage = "the arena is another process's" if pid != self._owner else ""
            return pid == self._owner
        found = self._mutex.acquire(self._patience)
        if found is None:
            self.shortage = "a process that has been stopped is in the middle of allocating"
            self._patience = PATIENCE / 100
            return False
        if found is False:
            self.ledger.recount()
        self._patience = PATIENCE
        return True

    def _leave(self) -> None:
        if self._mutex is not None:
            self._mutex.release()

    def unlock(self) -> None:
        """In a child that was forked: no thread of the parent holds a lock here."""
        self._lock = threading.RLock()
        self._busy = False


_arenas = Inherited(Arena.unlock)
