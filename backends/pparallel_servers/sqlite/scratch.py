"""Memory for values that are only read and let go: to have new memory costs as much as to copy."""

from __future__ import annotations

LARGE = 1 << 16  #: bytes below which nothing is kept


class Scratch:
    """Memory that is used again once nothing refers to it any more; any thread may take it."""

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self, nbytes: int) -> memoryview:
        """Return memory of so many bytes, which may hold anything."""
        if nbytes < LARGE:
            return memoryview(bytearray(nbytes))
        try:
            memory = self._kept.pop()
        except IndexError:
            memory = bytearray(nbytes)
        if len(memory) < nbytes or _is_in_use(memory):
            memory = bytearray(nbytes)
        view = memoryview(memory)[:nbytes]
        self._kept[:] = [memory]  # in use from here on, as there is a view of it
        return view


def _is_in_use(memory: bytearray) -> bool:
    """Return whether there is a view of *memory*: then its size cannot be changed."""
    try:
        memory.pop()
    except BufferError:
        return True
    memory.append(0)
    return False
