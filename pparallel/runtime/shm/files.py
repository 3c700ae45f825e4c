"""What large data goes through when shared memory is short: a file without a name."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Sequence

ALIGN = 64  #: each buffer begins at a multiple of it, as tensors like it


class Spill:
    """A file that is being filled. Whoever has its descriptor closes it."""

    def __init__(self) -> None:
        """Make the file.

        Raises:
            OSError: there is no room or no descriptor for it.
        """
        self.descriptor = _unnamed()
        self._end = 0

    def add(self, source: memoryview) -> int:
        """Append *source*; return where it begins.

        Raises:
            OSError: the disk is full.
        """
        start = self._end
        done = 0
        try:
            while done < len(source):
                done += os.pwrite(self.descriptor, source[done:], start + done)
        except OSError as error:
            raise _refusal(error) from error
        self._end = -(-(start + done) // ALIGN) * ALIGN
        return start


class Spilt:
    """A file that came with a message: its buffers, and the descriptors to close."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._descriptors = descriptors
        self._memory: memoryview | None = None

    def part(self, start: int, nbytes: int) -> memoryview:
        """Return a part of the file as memory of this process's own.

        Raises:
            OSError: the descriptor did not come along, for lack of descriptors.
        """
        if self._memory is None:
            if not self._descriptors:
                raise OSError(
                    "a message came without the file that holds its data: no descriptor was"
                    " left; raise the limit (ulimit -n) or keep fewer results"
                )
            self._memory = _mapped(self._descriptors[0])
        return self._memory[start : start + nbytes]

    def close(self) -> None:
        """Close the descriptors; the memory stays while it is referred to."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = ()


def directories() -> list[str]:
    """Return where such files go, the first choice first."""
    return list(dict.fromkeys((tempfile.gettempdir(), "/var/tmp")))


def _unnamed() -> int:
    refused: OSError | None = None
    for directory in directories():
        try:
            with tempfile.TemporaryFile(dir=directory) as file:
                return os.dup(file.fileno())
        except OSError as error:
            refused = refused or error
    assert refused is not None
    raise _refusal(refused) from refused


def _refusal(error: OSError) -> OSError:
    what = f"a file in {' or '.join(directories())} instead"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        advice = f"{what} needs a descriptor, and none is left: raise ulimit -n"
    else:
        advice = f"{what} is refused ({error.strerror}): free some space there, or set TMPDIR"
    return OSError(error.errno, f"shared memory is short, and {advice}")


def _mapped(descriptor: int) -> memoryview:
    nbytes = os.fstat(descriptor).st_size
    try:
        return memoryview(mmap.mmap(descriptor, nbytes))
    except OSError:
        # A mapping takes a descriptor, and addresses; a copy takes neither for long.
        copy = memoryview(bytearray(nbytes))
        done = 0
        while done < nbytes and (got := os.preadv(descriptor, [copy[done:]], done)):
            done += got
        return copy
