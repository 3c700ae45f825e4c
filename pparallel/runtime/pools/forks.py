"""Pools in a child that the program forks: their workers are the parent's."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """A pool, or the part of one that has its state."""

    def leave_to_parent(self) -> None:
        """Refuse all calls from now on, in a child that was forked; no other thread runs in it."""


_open: weakref.WeakSet[Inherited] = weakref.WeakSet()


def leave_in_forks(pool: Inherited) -> None:
    """Have *pool*, as long as it exists, left to this process in each child that it forks."""
    _open.add(pool)


def _forked() -> None:
    for each in list(_open):
        each.leave_to_parent()
    _open.clear()


os.register_at_fork(after_in_child=_forked)
