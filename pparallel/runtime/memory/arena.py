"""An arena: blocks of shared memory in a sparse file without a name.

The file begins with a table. A block has a number (its slot) and four entries there: a code, which
is its size class while it is free, a class, an offset, and a word that says who holds it. Blocks
take slots from the first one up; slots from ``BLOCKS`` on are further leases of published blocks,
one for each reader, with the block's offset.

A block is let go by one store of one byte, from any process: no message, no lock. Every other
change is made by the process that allocates, or under a lock of the file that ends with its
holder, and what counts is stored last, since a process may be killed at any instruction.
"""

from __future__ import annotations

import errno
import os
import resource
import struct
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple, NoReturn

from pparallel.errors import ClosedError, ResourceExhaustedError
from pparallel.machine import memory as machine
from pparallel.runtime.memory.lock import Lock
from pparallel.runtime.memory.views import (
    LARGE,
    RELEASED,
    Lease,
    Mapping,
    address_of,
    lease_of,
    view,
)
from pparallel.runtime.resources import explaining

SMALLEST = 1 << 14  #: bytes of the smallest block, where none is given
LARGEST = 1 << 36  #: bytes of the largest block, and most addresses of an arena
LEAST = 1 << 24  #: addresses below which an arena is of no use
PAGE = os.sysconf("SC_PAGE_SIZE")

SLOTS, BLOCKS = 1 << 16, 3 << 14
COLD = 0x80  #: added to the code of a free block whose pages were given back
LEASED = 0xFF
TRANSIT = 1 << 31  #: of a holder: sent and not arrived yet
PID = TRANSIT - 1

_SHARE = 2  #: an arena may have one of so many parts of the memory
_RESERVE = 16  #: one of so many parts of the memory stays free
_LOOK = 1 << 25  #: bytes of new pages between looks at how much memory is left
_ADDRESSES = 8  #: one of so many parts of the addresses left is taken
_TURN = 32  #: bits of a holder below the number of times that the block was leased
_MAGIC = b"pparena2"
_HEAD = struct.Struct("<8s5Q")  # what it is, then the first fields
_WORDS, _CODES = 128, 4096
_KINDS = _CODES + SLOTS
_HOLDERS = _KINDS + SLOTS
_OFFSETS = _HOLDERS + 8 * SLOTS
_DATA = _OFFSETS + 8 * SLOTS
_SPAN, _OWNER, _BUDGET, _SHARED, _SMALLEST, _USED, _READERS = range(1, 8)


def _capacities() -> list[int]:
    """Return powers of two up to 1 MB, then quarters of one; no class is 0."""
    found = [0, *(1 << power for power in range(6, 20))]
    for power in range(20, LARGEST.bit_length() - 1):
        found += [(1 << power) + quarter * (1 << power - 2) for quarter in range(4)]
    return [*found, LARGEST]


CAPACITIES = _capacities()  #: bytes of a block, by class

Handle = tuple[int, int, int, int]  #: slot, turn, first byte, bytes: finds memory in an arena


class Usage(NamedTuple):
    """What an arena holds.

    Attributes:
        leased: bytes of the blocks that are held.
        free: bytes of the blocks that are not, and that are kept in memory for the next.
        budget: bytes that the two may be together.
        blocks: how many blocks are held.
    """

    leased: int
    free: int
    budget: int
    blocks: int


def share() -> int:
    """Return how many bytes an arena may take where none are given."""
    return machine.total() // _SHARE


def has_room(nbytes: int) -> bool:
    """Return whether *nbytes* more may be taken without the machine, or its group, running short.

    A control group kills a process that takes more than there is; there is no error to wait for.
    """
    try:
        return nbytes + machine.total() // _RESERVE <= machine.available()
    except OSError:  # without a descriptor there is no telling, and it is a precaution only
        return True


def create_file(name: str) -> int:
    """Return the descriptor of a new file in memory.

    Raises:
        OSError: no descriptor is left.
    """
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


class Arena:
    """Blocks of shared memory, given out and taken back; any thread may use it.

    One process allocates, or any that has the descriptor when the arena is *shared*. Memory is a
    ``memoryview``: its block is free when nothing made of it is left. Freed blocks are used again,
    for their pages are there already; :meth:`trim` gives them back.

    A child that is forked may read the views that it inherits, as long as the parent holds them.
    It allocates from a shared arena only: memory of another is the parent's.

    Attributes:
        fd: the file's descriptor, for another process to attach to; -1: this one keeps none.
        mapping: the file, as this process maps it.
        words: 16 numbers of 64 bits that are the users' to agree on, at first 0.
        publishes: whether a block of it was ever published here.
        grown: called after pages were taken that :meth:`trim` can give back.
    """

    publishes = False
    grown: Callable[[], object] | None = None

    def __init__(self, descriptor: int, mapping: Mapping) -> None:
        self.fd, self.mapping = descriptor, mapping
        whole = mapping.bytes
        self._fields = whole[:_WORDS].cast("Q")
        self.words = whole[_WORDS : 2 * _WORDS].cast("Q")
        self._codes, self._kinds = whole[_CODES:_KINDS], whole[_KINDS:_HOLDERS]
        self._holders = whole[_HOLDERS:_OFFSETS].cast("Q")
        self._offsets = whole[_OFFSETS:_DATA].cast("Q")
        self._exclusive = Lock(descriptor if self._fields[_SHARED] else -1)
        self._known_room = 0  # bytes that may be taken until the next look at the machine
        self._used_at = time.monotonic()

    @classmethod
    def create(
        cls,
        name: str = "pparallel",
        budget: int | None = None,
        *,
        shared: bool = False,
        smallest: int = SMALLEST,
    ) -> Arena:
        """Return a new arena; :meth:`close` it when it is of no more use.

        Args:
            name: of the file in ``/proc``.
            budget: bytes of memory that it may take; None: half of what this process may use.
            shared: whether every process that attaches to it allocates.
            smallest: bytes of the smallest block.

        Raises:
            ResourceExhaustedError: there is no descriptor left, or no room among the addresses.
        """
        budget = share() if budget is None else budget
        with explaining("making an arena"):
            descriptor = create_file(name)
            try:
                mapping = grown(descriptor, _DATA, span(budget))
            except BaseException:
                os.close(descriptor)
                raise
        _HEAD.pack_into(
            mapping.bytes, 0, _MAGIC, len(mapping.bytes), os.getpid(), budget, shared, smallest
        )
        return cls(descriptor, mapping)

    @classmethod
    def attach(cls, descriptor: int) -> Arena:
        """Return the arena with that descriptor; the caller may close it then.

        Raises:
            ValueError: it is no arena's.
            ResourceExhaustedError: there is no descriptor left, or no room among the addresses.
        """
        head = os.pread(descriptor, _HEAD.size, 0)
        if not head.startswith(_MAGIC):
            raise ValueError("the descriptor is not that of an arena")
        with explaining("mapping an arena"):
            mapping = Mapping(descriptor, _HEAD.unpack(head)[_SPAN])
            is_shared = mapping.bytes[8 * _SHARED]  # and is passed on by all that have it
            return cls(os.dup(descriptor) if is_shared else -1, mapping)

    def allocate(self, nbytes: int) -> memoryview:
        """Return memory of *nbytes*, whose content is undefined.

        Raises:
            ClosedError: after :meth:`close`, or in a forked child.
            ResourceExhaustedError: there is no room.
            RuntimeError: a finalizer calls this while its thread allocates.
            TimeoutError: a process that was stopped while it allocates has held others up.
        """
        return self._view(self.take(nbytes), 0, nbytes)

    def take(self, nbytes: int) -> int:
        """Return the slot of a block as :meth:`allocate` does, without a view to release it."""
        if nbytes > LARGEST:
            raise _shortage(nbytes, f"the largest block has {LARGEST}")
        kind = bisect_left(CAPACITIES, max(nbytes, self._fields[_SMALLEST]))
        with self._exclusive:
            self._expect_owner()
            self._used_at = time.monotonic()
            self._collect()
            slot, is_new = self._all_codes().find(kind), False
            if slot < 0:
                slot, is_new = self._made(kind, nbytes)
            self._lease(slot)
        if is_new and nbytes >= LARGE and not self.mapping.populate(self._offsets[slot], nbytes):
            self.mapping.discard(self._offsets[slot], CAPACITIES[kind])
            self._codes[slot] = kind | COLD
            raise _shortage(nbytes, "the machine has none left")
        if is_new and self.grown is not None:
            self.grown()
        return slot

    def offset(self, slot: int) -> int:
        """Return where a block begins in the mapping."""
        return self._offsets[slot]

    def capacity(self, slot: int) -> int:
        """Return the bytes of a block."""
        return CAPACITIES[self._kinds[slot]]

    def locate(self, raw: memoryview) -> tuple[Lease, int] | None:
        """Return this process's lease of the block in which *raw* lies, and where; None: in none.

        Further leases of published blocks are not found.
        """
        at = address_of(raw) - self.mapping.address
        if not _DATA <= at < len(self.mapping.bytes):
            return None
        slot = bisect_right(self._offsets, at, 0, self._fields[_USED]) - 1
        if slot < 0 or at >= self._offsets[slot] + CAPACITIES[self._kinds[slot]]:
            return None
        lease = lease_of(self.mapping, slot)
        return None if lease is None else (lease, at - self._offsets[slot])

    def send(self, slot: int, start: int, nbytes: int, to: int | None = None) -> Handle:
        """Have a block that this process holds on its way; return what :meth:`adopt` takes.

        Args:
            slot: of the block.
            start: the first byte that the receiver is to see.
            nbytes: how many it is to see.
            to: the process whose death releases the block before it has arrived; None: this one.
                0: none does.
        """
        self._mark(slot, TRANSIT | (os.getpid() if to is None else to))
        return slot, self._holders[slot] >> _TURN, start, nbytes

    def lend(self, memory: memoryview, to: int | None = None) -> Handle:
        """Have the block of *memory*, which is not used here any more, be written to by *to*.

        The borrower adopts it and sends it back, or lets it go: its view, or its death, does.

        Raises:
            ValueError: *memory* is not what this arena gave.
        """
        lease, start = self._lease_at(memory)
        lease.claim()
        return self.send(lease.slot, start, len(memory), to)

    def adopt(self, handle: Handle) -> memoryview:
        """Return memory that was sent; it is this process's now, or read-only if it is published.

        Raises:
            RuntimeError: it has been adopted or dropped before.
        """
        slot, turn, start, nbytes = handle
        if not self._is_on_its_way(slot, turn):
            holder = self._holders[slot] & PID
            raise RuntimeError(f"block {slot}, last held by process {holder}, is not on its way")
        self._mark(slot, os.getpid())
        memory = self._view(slot, start, nbytes)
        return memory.toreadonly() if slot >= BLOCKS else memory

    def drop(self, handle: Handle) -> None:
        """Let go of memory that was sent and that will not be adopted; harmless if it has been."""
        if self._is_on_its_way(*handle[:2]):
            self._codes[handle[0]] = RELEASED

    def publish(self, memory: memoryview) -> None:
        """Promise that the block of *memory* is not written to any more.

        What a payload sends of it is not copied from now on: receivers read the block itself.

        Raises:
            ValueError: *memory* is not what this arena gave.
        """
        self._lease_at(memory)[0].published = self.publishes = True

    def share(self, slot: int, start: int, nbytes: int, to: int | None = None) -> Handle:
        """Return a further lease of a published block on its way, as :meth:`send` does.

        Raises:
            ResourceExhaustedError: there are too many readers.
        """
        with self._exclusive:
            self._expect_owner()
            used, readers = self._fields[_READERS], self._reader_codes()
            reader = readers.find(RELEASED)
            if reader < 0:
                if (reader := used) == SLOTS - BLOCKS:
                    raise _shortage(nbytes, f"{used} readers hold what was published")
                self._fields[_READERS] = used + 1
            reader += BLOCKS
            self._offsets[reader], self._kinds[reader] = self._offsets[slot], self._kinds[slot]
            self._lease(reader)
        return self.send(reader, start, nbytes, to)

    def reclaim(self, pid: int) -> None:
        """Free all that the process *pid*, which has died, held or was to get.

        What it has sent here is adopted before. Where it was the arena's owner, the pages of all
        blocks that nobody holds are given back as well, by each process that has the arena.
        """
        with self._exclusive:
            self._release_where(lambda holder: holder & PID == pid)
            self._collect()
            if self._fields[_OWNER] == pid:
                self._discard()

    def trim(self, idle: float = 0.0) -> int:
        """Give the memory of free blocks back to the machine; return how many bytes.

        Args:
            idle: seconds; 0 bytes are given back if a block was taken within so many.
        """
        if time.monotonic() - self._used_at < idle:
            return 0
        with self._exclusive:
            self._expect_owner()
            self._collect()
            given = self._discard()
            self._forget_last()
            return given

    def usage(self) -> Usage:
        """Return what it holds now; roughly, while other processes use it."""
        read = self._read()
        held = [*_all(self._all_codes(), LEASED), *_all(self._all_codes(), RELEASED)]
        held = [each for each in held if self._codes[each] == LEASED or self._offsets[each] in read]
        leased = sum(map(self.capacity, held))
        return Usage(leased, self._resident() - leased, self._fields[_BUDGET], len(held))

    def close(self) -> None:
        """Stop using it; safe to call again.

        Views that live stay valid: the memory is unmapped with the last of them.
        """
        with suppress(ClosedError, RuntimeError, TimeoutError):  # closed, or nothing to give back
            self.trim()
        for name in _CLOSING:  # views that live have it still, and nobody else
            vars(self).pop(name, None)
        self._exclusive.close()
        descriptor, self.fd = self.fd, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __getattr__(self, name: str) -> NoReturn:
        if name in _CLOSING:
            raise ClosedError("the arena")
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=self)

    def _view(self, slot: int, start: int, nbytes: int) -> memoryview:
        capacity = CAPACITIES[self._kinds[slot]]
        array = view(self.mapping, self._codes, slot, self._offsets[slot], capacity)
        return memoryview(array).cast("B")[start : start + nbytes]

    def _lease_at(self, memory: memoryview) -> tuple[Lease, int]:
        found = self.locate(memory)
        if found is None:
            raise ValueError("the memory is not of a block of this arena that this process holds")
        return found

    def _mark(self, slot: int, holder: int) -> None:
        self._holders[slot] = self._holders[slot] >> _TURN << _TURN | holder

    def _is_on_its_way(self, slot: int, turn: int) -> bool:
        word = self._holders[slot]
        return bool(word >> _TURN == turn and word & TRANSIT and self._codes[slot] == LEASED)

    def _lease(self, slot: int) -> None:
        turn = (self._holders[slot] >> _TURN) + 1 & 0xFFFF_FFFF
        self._holders[slot] = turn << _TURN | os.getpid()
        self._codes[slot] = LEASED

    def _expect_owner(self) -> None:
        owner = self._fields[_OWNER]
        if owner != os.getpid() and not self._fields[_SHARED]:
            raise ClosedError("the arena", f"is that of process {owner}")

    def _all_codes(self) -> bytes:
        # A slice is a copy whose find is memchr; mmap's own find compares byte by byte.
        return self.mapping.memory[_CODES : _CODES + self._fields[_USED]]

    def _reader_codes(self) -> bytes:
        return self.mapping.memory[_CODES + BLOCKS : _CODES + BLOCKS + self._fields[_READERS]]

    def _read(self) -> set[int]:
        """Return the offsets of published blocks that have readers."""
        return {self._offsets[BLOCKS + each] for each in _all(self._reader_codes(), LEASED)}

    def _collect(self) -> None:
        """Free what was let go, unless it has readers."""
        if released := list(_all(self._all_codes(), RELEASED)):
            read = self._read()
            for slot in released:
                if self._offsets[slot] not in read:
                    self._codes[slot] = self._kinds[slot]

    def _made(self, kind: int, nbytes: int) -> tuple[int, bool]:
        """Return a free block without pages, or a larger one that has them; and which it is."""
        why = self._refusal(CAPACITIES[kind])
        if why and self._release_where(_Dead()):
            self._collect()
            why = self._refusal(CAPACITIES[kind])
        if not why:
            slot = self._all_codes().find(kind | COLD)
            if slot >= 0 or (slot := self._added(kind)) >= 0:
                return slot, True
            why = f"all of its {self._fields[_SPAN]} bytes of addresses are taken"
        codes = self._all_codes()
        larger = [code for code in set(codes) if kind <= code < COLD]
        if not larger:
            raise _shortage(nbytes, why)
        return codes.find(min(larger)), False

    def _refusal(self, nbytes: int) -> str:
        """Return why there may not be so many bytes of new pages; nothing if there may."""
        budget = self._fields[_BUDGET]
        over = self._resident() + nbytes - budget
        if over > 0 and self._discard(over) < over:
            return f"its budget is {budget} bytes"
        self._known_room -= nbytes
        if self._known_room < 0:
            if not has_room(nbytes):
                self._discard()
                if not has_room(nbytes):
                    return "the machine's, or the control group's, memory is nearly used up"
            with suppress(OSError):  # without a descriptor the next one looks again
                self._known_room = min(_LOOK, machine.total() // (2 * _RESERVE))
        return ""

    def _added(self, kind: int) -> int:
        """Return a new block, free and without pages; -1: there is no room among the addresses."""
        self._forget_last()
        slot, end = self._fields[_USED], _DATA
        if slot:
            end = self._offsets[slot - 1] + self.capacity(slot - 1)
        step = min(CAPACITIES[kind], PAGE)
        start = -(-end // step) * step
        if slot == BLOCKS or start + CAPACITIES[kind] > self._fields[_SPAN]:
            return -1
        self._offsets[slot], self._kinds[slot], self._codes[slot] = start, kind, kind | COLD
        self._fields[_USED] = slot + 1
        return slot

    def _resident(self) -> int:
        """Return the bytes of blocks with pages."""
        codes = self._all_codes()
        kinds = self.mapping.memory[_KINDS : _KINDS + len(codes)]
        return sum(
            CAPACITIES[kind] * (kinds.count(kind) - codes.count(kind | COLD)) for kind in set(kinds)
        )

    def _discard(self, most: int = 1 << 62) -> int:
        """Give pages of free blocks back, the largest first, up to *most* bytes; return those."""
        given, codes = 0, self._all_codes()
        for kind in sorted(set(codes), reverse=True):
            if kind < COLD and CAPACITIES[kind] >= PAGE:  # smaller ones share a page
                for slot in _all(codes, kind):
                    if given >= most:
                        return given
                    self.mapping.discard(self._offsets[slot], CAPACITIES[kind])
                    self._codes[slot] = kind | COLD
                    given += CAPACITIES[kind]
        return given

    def _forget_last(self) -> None:
        """Forget free blocks without pages at the end: others may have their addresses."""
        used = self._fields[_USED]
        while used and COLD <= self._codes[used - 1] < RELEASED:
            used -= 1
        self._fields[_USED] = used

    def _release_where(self, is_gone: Callable[[int], bool]) -> bool:
        readers = (BLOCKS + each for each in _all(self._reader_codes(), LEASED))
        held = chain(_all(self._all_codes(), LEASED), readers)
        lost = [slot for slot in held if is_gone(self._holders[slot] & (TRANSIT | PID))]
        for slot in lost:
            self._codes[slot] = RELEASED
        return bool(lost)


class _Dead:
    """Whether a holder is a process that has ended; each is looked for once."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {0: False}

    def __call__(self, holder: int) -> bool:
        if holder & TRANSIT:  # a message outlives its sender
            return False
        pid = holder & PID
        if pid not in self._known:
            try:
                with open(f"/proc/{pid}/stat", "rb") as file:
                    # The name before it may hold anything, brackets too.
                    state = file.read().rpartition(b")")[2].split()[0]
                self._known[pid] = state in (b"Z", b"X")
            except OSError as error:  # for want of descriptors, say, there is no telling
                self._known[pid] = isinstance(error, FileNotFoundError | ProcessLookupError)
        return self._known[pid]


_CLOSING = ("mapping", "words", "_fields", "_codes", "_kinds", "_holders", "_offsets")


def _shortage(nbytes: int, why: str) -> ResourceExhaustedError:
    advice = (
        f"{why}; keep fewer results, or raise the limit: the memory of the machine or container,"
        " ulimit -v, or the arena's budget"
    )
    what = f"taking {nbytes} bytes of shared memory"
    return ResourceExhaustedError(what, "memory", errno.ENOMEM, advice)


def _all(codes: bytes, code: int) -> Iterator[int]:
    """Yield the places of *code* in *codes*."""
    slot = codes.find(code)
    while slot >= 0:
        yield slot
        slot = codes.find(code, slot + 1)


def span(budget: int) -> int:
    """Return for how many bytes an arena of that budget takes addresses."""
    found = min(LARGEST, max(8 * budget, LEAST))
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY:
        found = min(found, soft // 2)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        # The other end, which may have more in use already, must find room for it too.
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
        found = min(found, max(soft - taken, 0) // _ADDRESSES)
    return found // PAGE * PAGE


def grown(descriptor: int, least: int, more: int) -> Mapping:
    """Return the file, mapped, as large as *least* and, if there is room, *more* bytes."""
    while True:
        try:
            os.ftruncate(descriptor, least + more)
            return Mapping(descriptor, least + more)
        except OSError:
            more = more // 4 // PAGE * PAGE
            if more < LEAST:
                raise
