"""A file in memory, as one process maps it, and views of its blocks that report their end.

A slice of the mapping itself does not report its end: an object made of a slice refers to the
mapping behind it. Everything made of a ctypes array keeps that very array alive.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from typing import Any

from pparallel.machine.copying import copy_all

RELEASED = 0xFE  #: the code of a block whose holder has let go
LARGE = 1 << 20  #: bytes from which on other threads run during a copy, which costs a microsecond

_POPULATE_WRITE = 23  #: MADV_POPULATE_WRITE, which the mmap module does not name yet

# Unlike mmap.madvise, calls through this let other threads run.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Mapping:
    """A file in memory, mapped whole; unmapped when nothing refers to it any more.

    Attributes:
        memory: the mapping.
        bytes: all of it, to read and to write.
        address: of its first byte.

    Raises:
        OSError: there is no room among the addresses, or no descriptor left.
    """

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.memory = mmap.mmap(descriptor, nbytes)
        # A core file would hold the addresses of all blocks there may ever be.
        self.memory.madvise(mmap.MADV_DONTDUMP)
        self.bytes = memoryview(self.memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def write(self, offset: int, source: memoryview) -> None:
        """Copy *source*, which is contiguous, to *offset*."""
        nbytes = len(source)
        if nbytes < LARGE:
            self.bytes[offset : offset + nbytes] = source
        else:
            _copy_to(self.address + offset, source)

    def populate(self, offset: int, nbytes: int) -> bool:
        """Take all pages at once, which is quicker than one by one; return False if there are none.

        In a control group without memory for them the process is killed: ask ``has_room`` before.
        """
        if _libc.madvise(self.address + offset, nbytes, _POPULATE_WRITE) == 0:
            return True
        # Kernels before 5.14 do not know it; the pages then come as they are written.
        return ctypes.get_errno() not in (errno.ENOMEM, errno.EFAULT)

    def discard(self, offset: int, nbytes: int) -> None:
        """Give pages back, for all processes; what they held is zero from now on."""
        _libc.madvise(self.address + offset, nbytes, mmap.MADV_REMOVE)


class Lease(weakref.ref[Any]):
    """A block that this process holds while the view lives that this refers to.

    The end of the view is one store of one byte and takes no lock, since the collector may run it
    in any thread at any point. In a forked child it does nothing: the block is the parent's.

    Attributes:
        slot: the block's number.
        published: whether nobody writes to it any more.
    """

    __slots__ = ("_base", "_codes", "_pid", "_unclaimed", "published", "slot")

    slot: int
    published: bool
    _base: int
    _codes: memoryview
    _pid: int
    _unclaimed: list[bool]

    def claim(self) -> bool:
        """Have the end of the view release nothing, as the block goes on; False: another has it."""
        try:
            self._unclaimed.pop()  # of two threads, one
        except IndexError:
            return False
        return True

    def unclaim(self) -> None:
        """Have the end of the view release the block, which has not gone on."""
        self._unclaimed.append(True)


_leases: dict[tuple[int, int], Lease] = {}  #: by address of the mapping and slot
_process = [os.getpid()]


# The names are arguments, for at the end of the program those of the module may be gone.
def _end(lease: Any, leases: Any = _leases, process: Any = _process, code: int = RELEASED) -> None:
    if leases.get((lease._base, lease.slot)) is lease:
        del leases[lease._base, lease.slot]
    if lease._unclaimed and lease._pid == process[0]:
        lease._codes[lease.slot] = code


_arrays: dict[int, Any] = {}  # ctypes takes long to make a type


def view(
    mapping: Mapping, codes: memoryview, slot: int, offset: int, capacity: int
) -> ctypes.Array[Any]:
    """Return a view of a block that this process holds: its end releases the block.

    Args:
        mapping: of the arena.
        codes: one byte for each block, where the end is noted.
        slot: the block's number.
        offset: where it begins.
        capacity: its bytes.
    """
    kind = _arrays.get(capacity) or _arrays.setdefault(capacity, ctypes.c_ubyte * capacity)
    array = kind.from_buffer(mapping.memory, offset)
    lease = Lease(array, _end)
    lease.slot, lease.published, lease._unclaimed = slot, False, [True]
    lease._base, lease._codes, lease._pid = mapping.address, codes, _process[0]
    _leases[mapping.address, slot] = lease
    return array  # type: ignore[no-any-return] # of a class made here


def lease_of(mapping: Mapping, slot: int) -> Lease | None:
    """Return this process's lease of a block, if it has a view of it."""
    return _leases.get((mapping.address, slot))


class _Buffer(ctypes.Structure):
    """Py_buffer: the way to the address of memory that may not be written to."""


_Buffer._fields_ = [("buf", ctypes.c_void_p), ("rest", ctypes.c_byte * 72)]


_python = ctypes.PyDLL(None)
_get: Any = _python.PyObject_GetBuffer
_get.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
_release: Any = _python.PyBuffer_Release
_release.argtypes = [ctypes.POINTER(_Buffer)]
_release.restype = None


def address_of(source: memoryview) -> int:
    """Return where *source*, which is not empty, lies in memory."""
    if not source.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(source))
    buffer = _Buffer()
    _get(source, buffer, 0)
    try:
        return int(buffer.buf)
    finally:
        _release(buffer)


def copy(target: memoryview, source: memoryview) -> None:
    """Copy *source*, which is contiguous, into *target*, as long; other threads run meanwhile."""
    if len(target) != len(source):
        raise ValueError(f"{len(source)} bytes cannot fill {len(target)}")
    if len(source):
        _copy_to(address_of(target), source)


def writable(memory: memoryview) -> memoryview:
    """Return the memory of a published block, which arrived read-only, as one that is not.

    It is for building objects over it that are read only: others read the same memory.
    """
    whole = memoryview(memory.obj).cast("B")
    start = address_of(memory) - address_of(whole)
    return whole[start : start + len(memory)]


def _copy_to(address: int, source: memoryview) -> None:
    # A live view of the source keeps its memory where it is.
    copy_all([(address, address_of(source), len(source))])


def _after_fork() -> None:
    _process[0] = os.getpid()


os.register_at_fork(after_in_child=_after_fork)
