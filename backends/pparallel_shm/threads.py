"""Keeps the members of a group from computing with more threads than there are cores."""

from __future__ import annotations

import ctypes
from typing import Any


class Threads:
    """With how many threads torch works in an operation, in the thread that calls it alone.

    Members that each use all cores for a copy wait for threads that get none.

    Args:
        most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        import torch

        self._most = most
        self._count = torch.get_num_threads
        # What torch asks for each time it shares work out; `torch.set_num_threads` would also
        # set what threads get that are started meanwhile.
        self._set: Any = getattr(ctypes.PyDLL(None), "omp_set_num_threads", None)

    def lower(self) -> int:
        """Use no more than that from now on; return how many there were, or 0 if it is the same."""
        count = self._count()
        if count <= self._most or self._set is None:
            return 0
        self._set(self._most)
        return count

    def restore(self, count: int) -> None:
        """Use as many as there were."""
        if count:
            self._set(count)
