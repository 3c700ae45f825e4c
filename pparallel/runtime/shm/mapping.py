"""The file in memory that an arena is, and its pages."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys

from pparallel.runtime.shm.copying import copy_to
from pparallel.runtime.shm.limits import LEAST, PAGE

LARGE = 1 << 20  #: bytes from which on other threads run meanwhile, which costs about a microsecond

POPULATE_WRITE = 23  #: MADV_POPULATE_WRITE, which the mmap module does not name yet

# Unlike mmap.madvise, calls through this let other threads run.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Mapping:
    """A file in memory, mapped whole. It is unmapped when nothing refers to it any more."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.memory = mmap.mmap(descriptor, nbytes)
        # A core file would hold the addresses of all blocks there may ever be.
        self.memory.madvise(mmap.MADV_DONTDUMP)
        self.bytes = memoryview(self.memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def write(self, offset: int, source: memoryview) -> None:
        """Copy *source* to *offset*."""
        nbytes = len(source)
        if nbytes < LARGE:
            self.bytes[offset : offset + nbytes] = source
        else:
            copy_to(self.address + offset, source)

    def populate(self, offset: int, nbytes: int) -> bool:
        """Have the pages there at once, which is quicker than one by one.

        Returns:
            False: the memory for them is not to be had.
        """
        if _libc.madvise(self.address + offset, nbytes, POPULATE_WRITE) == 0:
            return True
        # Kernels before 5.14 do not know it; the pages then come as they are written.
        return ctypes.get_errno() not in (errno.ENOMEM, errno.EFAULT)

    def discard(self, offset: int, nbytes: int) -> None:
        """Give the pages back; what they held is zero from now on."""
        _libc.madvise(self.address + offset, nbytes, mmap.MADV_REMOVE)


def create(name: str) -> int:
    """Return a descriptor of a new file in memory.

    Raises:
        OSError: this platform has none, or no descriptor is left.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, f"shared memory without a name is not known on {sys.platform}")
    return os.memfd_create(name or "pparallel", os.MFD_CLOEXEC)


def grown(descriptor: int, least: int, more: int) -> Mapping:
    """Return the file, mapped, as large as *least* and, if there is room, *more* bytes.

    Raises:
        OSError: there is no room among the addresses even for little more than *least*.
    """
    while True:
        try:
            os.ftruncate(descriptor, least + more)
            return Mapping(descriptor, least + more)
        except OSError:
            more = more // 4 // PAGE * PAGE
            if more < LEAST:
                raise


def whole_pages(offset: int, nbytes: int) -> bool:
    """Return whether a block there shares no page with another."""
    return not (offset | nbytes) % PAGE
