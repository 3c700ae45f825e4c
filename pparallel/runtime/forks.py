"""Objects that a forked child has copies of."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakSet

T = TypeVar("T")


class Inherited(WeakSet[T]):
    """Objects of one kind, for as long as they exist.

    Args:
        act: called in a forked child with each of them, when no other thread runs.
        once: whether that child's own children leave its copies as they are.
    """

    def __init__(self, act: Callable[[T], object], *, once: bool = False) -> None:
        super().__init__()
        self._act, self._once = act, once
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        for each in list(self):
            self._act(each)
        if self._once:
            self.clear()
