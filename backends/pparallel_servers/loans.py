"""Blocks of the host's memory that other members write to, until they push them."""

from __future__ import annotations

import threading
from contextlib import suppress

from pparallel.runtime.rpc import Reply, Request, RpcGroup
from pparallel.runtime.shm.block import Ticket
from pparallel.runtime.versioned_store import VersionedStore


class Loans:
    """Who has been lent what.

    What a member holds when it ends is free once its process is dead: one that was only given up
    may still be writing.
    """

    def __init__(self, store: VersionedStore, group: RpcGroup) -> None:
        self._store, self._group = store, group
        self._lock = threading.Lock()
        self._lent: dict[tuple[str, int], tuple[Ticket, int]] = {}

    def begin(self, asked: Request) -> Reply:
        """Lend a block to whoever wants to push.

        The answer is the block, or False where the push would be refused, or None where there is
        no room.
        """
        number, key, prev_version, nbytes, pid = asked.body
        if not self._store.would_accept(key, prev_version):
            return Reply(False)
        arena = self._group.arena(self._group.get_cur_name())
        block = None if arena is None else arena.allocate(nbytes)
        if arena is None or block is None:
            return Reply(None)
        ticket = arena.lend(block, pid)
        with self._lock:
            self._lent[asked.sender, number] = ticket, pid
        return Reply(ticket)

    def end(self, sender: str, number: int) -> memoryview:
        """Return what *sender* has written, which nobody writes to from now on.

        Raises:
            RuntimeError: it is not lent to that member any more.
        """
        with self._lock:
            ticket, pid = self._lent.pop((sender, number), ((-1, -1, 0), -1))
        arena = self._group.arena(self._group.get_cur_name())
        if arena is None or pid < 0:
            raise RuntimeError(f"{sender!r} pushes a block that was not lent to it")
        memory = arena.take_back(ticket, pid)
        arena.publish(memory)
        return memory

    def abandon(self, asked: Request) -> Reply:
        """Take back what the sender does not want to push any more."""
        with suppress(RuntimeError):  # it has been pushed, or never lent
            self.end(asked.sender, asked.body)
        return Reply()

    def forget(self, member: str) -> None:
        """Keep no books of a member that has ended."""
        with self._lock:
            for key in [each for each in self._lent if each[0] == member]:
                del self._lent[key]
