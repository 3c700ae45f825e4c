"""What a serializer made, on its way to another process.

A little of it travels in a message; more of it in a file in memory. Much of it the receiver maps:
it is written once, whatever the number of receivers, and copied by nobody but who changes it.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import mmap
import os
from collections.abc import Sequence

from typing_extensions import Buffer

INLINE = 1 << 15  #: bytes that travel in a message
MAPPED = 1 << 20  #: bytes from which on a file is mapped, which takes a descriptor; else it is read
_ALIGN = 64  #: each buffer begins at a multiple of it, as tensors like it


class Cargo:
    """Buffers, packed.

    Attributes:
        head: the bytes to send.
        files: the descriptors to send with it, none or one; closed by :meth:`close`.
    """

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        """Pack *buffers*, which may be changed afterwards.

        Raises:
            OSError: there is no memory or no descriptor for so much.
        """
        views = [memoryview(each).cast("B") for each in buffers]
        self.files: list[int] = []
        if sum(map(len, views)) <= INLINE:
            self.head = marshal.dumps([bytes(each) for each in views])
            return
        self.head = marshal.dumps([len(each) for each in views])
        self.files.append(os.memfd_create("pparallel-cargo", os.MFD_CLOEXEC))
        try:
            _write(self.files[0], views)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptor, once it has been sent; safe to call again."""
        while self.files:
            os.close(self.files.pop())


def unpacked(head: bytes, files: list[int], *, alone: bool) -> list[Buffer]:
    """Return the buffers as memory of this process's own; closes *files*.

    Args:
        head: that of the cargo.
        files: the descriptors that came with it.
        alone: no other process maps the file, so that a change need not copy the page.

    Raises:
        OSError: the file did not come along.
    """
    try:
        parts = marshal.loads(head)
        if not parts or isinstance(parts[0], bytes):
            return [bytearray(each) for each in parts]
        if not files:
            raise OSError(errno.EMFILE, "no descriptor is left for what is sent: raise ulimit -n")
        whole = _content(files[0], alone)
    finally:
        for each in files:
            os.close(each)
    found: list[Buffer] = []
    start = 0
    for length in parts:
        found.append(whole[start : start + length])
        start = _next(start + length)
    return found


def _content(file: int, alone: bool) -> memoryview:
    nbytes = os.fstat(file).st_size
    if nbytes >= MAPPED:
        access = mmap.ACCESS_WRITE if alone else mmap.ACCESS_COPY
        with contextlib.suppress(OSError):  # no descriptor is left, or no addresses
            return memoryview(mmap.mmap(file, nbytes, access=access))
    read = memoryview(bytearray(nbytes))
    done = 0
    while done < nbytes:
        done += os.preadv(file, [read[done:]], done)
    return read


def _write(file: int, views: Sequence[memoryview]) -> None:
    start = 0
    for view in views:
        done = 0
        while done < len(view):
            done += os.pwrite(file, view[done:], start + done)
        start = _next(start + len(view))


def _next(end: int) -> int:
    return -(-end // _ALIGN) * _ALIGN
