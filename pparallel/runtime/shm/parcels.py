"""What a serializer made, on its way in one message."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping, Sequence

from typing_extensions import Buffer

from pparallel.runtime.shm.arena import Arena
from pparallel.runtime.shm.files import directories
from pparallel.runtime.shm.heads import ENTRY, HEAD, INLINE, LONE_BYTE, ONE, ONE_BYTE
from pparallel.runtime.shm.ledger import TRANSIT
from pparallel.runtime.shm.packing import Packing
from pparallel.runtime.shm.unpacking import Unpacking

logger = logging.getLogger(__name__)


class Parcel:
    """Buffers, packed.

    Attributes:
        fds: descriptors that travel with the head; the sender closes them after sending.
    """

    __slots__ = ("_finish", "_head", "fds")

    def __init__(
        self, head: bytes, fds: list[int], finish: Callable[[Parcel], bytes] | None = None
    ) -> None:
        self._head, self.fds, self._finish = head, fds, finish

    def head(self) -> bytes:
        """Return the bytes to send; seals the parcel."""
        self.seal()
        return self._head

    def seal(self) -> None:
        """Settle what moves: blocks that somebody still views here are copied instead.

        The sender has let go of what it packed by then.

        Raises:
            OSError: there is room neither in shared memory nor in a file. Nothing is packed then.
        """
        finish, self._finish = self._finish, None
        if finish is not None:
            self._head = finish(self)


class Parcels:
    """Packs buffers into messages between two processes, and unpacks them.

    Small buffers travel in the message. A large one has a block, which the receiver's views let
    go. Where there is no room for a block the large ones go through a file without a name.

    Any thread may use it.
    """

    def __init__(
        self,
        own: Arena | None,
        others: Mapping[int, Arena],
        *,
        longest: int = HEAD,
        files: bool = True,
    ) -> None:
        """Know the arenas.

        Args:
            own: from which this end allocates; None: large data goes through files.
            others: further arenas that blocks may lie in, by the numbers that both ends have for
                them. That of *own* is the lowest that they leave.
            longest: bytes of the longest head.
            files: whether what finds no room goes through files; otherwise it is refused.
        """
        number = next(each for each in range(len(others) + 1) if each not in others)
        self._own, self._number = own, number
        self._longest, self._files = longest, files
        self._least = min(INLINE, longest)
        self._arenas = dict(others)
        if own is not None:
            self._arenas[number] = own
        self._retained: set[tuple[int, int]] = set()
        self.warned = False  # where there is no arena

    def pack(self, buffers: Sequence[Buffer], *, move: bool = False) -> Parcel:
        """Return *buffers* as a parcel; they may be changed once it is sealed.

        Args:
            buffers: contiguous memory.
            move: buffers that lie in a block which this process holds travel without a copy, if
                nobody else views that block when the parcel is sealed. Others are copied at once.

        Raises:
            OSError: there is room neither in shared memory nor in a file. Nothing is packed then.
                Its number is ``ENOMEM`` where there are to be no files.
        """
        if len(buffers) == 1:
            only = buffers[0]
            if type(only) is bytes and len(only) < INLINE:
                if len(only) < self._least:
                    return Parcel(ONE_BYTE + only, [])
                if (head := self._lone(only)) is not None:
                    return Parcel(head, [])
        packing = Packing(self._own, self._number, self._arenas, self._longest, self._short)
        try:
            packing.add(buffers, move)
            if not packing.moving:
                return Parcel(packing.seal(), packing.fds)
        except BaseException:
            self._undo(packing)
            raise
        return Parcel(b"", packing.fds, lambda parcel: self._finished(parcel, packing))

    def unpack(self, head: Buffer, fds: Sequence[int] = ()) -> list[Buffer]:
        """Return the buffers, writable and this process's own; closes *fds*.

        The last reference to a large one lets its block go. Small ones are copies.

        Raises:
            OSError: the file that holds them did not come along or cannot be read.
            RuntimeError: the parcel has been unpacked before, or lies in an arena that this end
                does not know.
        """
        whole = memoryview(head)
        if whole[0] == ONE and not fds:
            return [bytearray(whole[1:])]
        return Unpacking(self._arenas, fds).buffers(whole)

    def drop(self, head: Buffer, fds: Sequence[int] = ()) -> None:
        """Let go of what a parcel that nobody will unpack holds; closes *fds*."""
        whole = memoryview(head)
        if whole[0] != ONE or fds:
            Unpacking(self._arenas, fds).drop(whole)

    def blocks(self, head: Buffer) -> list[tuple[int, int]]:
        """Return slot and turn of each block of a parcel, whose arenas are all one."""
        return [each[1:] for each in Unpacking(self._arenas, ()).blocks(memoryview(head))]

    def hold(self, head: Buffer) -> None:
        """Take a parcel back that was not sent; it is this process's until :meth:`send`."""
        Unpacking(self._arenas, ()).mark(memoryview(head), TRANSIT, 0)

    def send(self, head: Buffer) -> None:
        """Have a parcel that was taken back on its way again."""
        Unpacking(self._arenas, ()).mark(memoryview(head), 0, TRANSIT)

    def settle(self) -> None:
        """Let go of the blocks that could not move, where their views have died since."""
        for place, slot in list(self._retained):
            ledger = self._arenas[place].ledger
            if slot in ledger.gone and self._forgotten((place, slot)):
                ledger.gone.discard(slot)
                del ledger.movers[slot]
                ledger.release(slot)

    def _forgotten(self, block: tuple[int, int]) -> bool:
        try:
            self._retained.remove(block)
        except KeyError:  # another thread was quicker
            return False
        return True

    def _lone(self, only: bytes) -> bytes | None:
        """Return the head of one small buffer in a block, None where there is no room."""
        own, pid = self._own, os.getpid()
        slot = -1 if own is None else own.take(len(only), pid)
        if own is None or slot < 0:
            return None
        ledger = own.ledger
        start = ledger.offsets[slot]
        ledger.mapping.bytes[start : start + len(only)] = only
        ledger.holders[slot] = TRANSIT | pid
        return LONE_BYTE + ENTRY.pack(self._number, slot, ledger.turns[slot], 0, len(only))

    def _finished(self, parcel: Parcel, packing: Packing) -> bytes:
        try:
            head = packing.seal()
        except BaseException:
            self._undo(packing)
            raise
        self._retained |= packing.retained
        parcel.fds = packing.fds
        return head

    def _undo(self, packing: Packing) -> None:
        packing.undo()
        self._retained |= packing.retained

    def _short(self, nbytes: int) -> None:
        """Say once that shared memory is short, or refuse."""
        if not self._files:
            shortage = "there is no shared memory" if self._own is None else self._own.shortage
            raise OSError(errno.ENOMEM, f"no room for {nbytes} bytes: {shortage}")
        teller = self if self._own is None else self._own  # an arena has parcels to many peers
        if teller.warned:
            return
        teller.warned = True
        where = " or ".join(directories())
        if self._own is None:
            logger.warning("there is no shared memory; large data goes through files in %s", where)
            return
        logger.warning(
            "no room for %d bytes in shared memory, where %d are in use: %s. Until there is, large"
            " data goes through files in %s, which is slower. Keep fewer results, or raise the"
            " limit: the memory of the machine or container, ulimit -v, or the arena's budget",
            nbytes,
            self._own.usage().leased,
            self._own.shortage,
            where,
        )
