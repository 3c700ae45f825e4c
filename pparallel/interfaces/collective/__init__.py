"""Collective: operations on tensors that all members of a group do together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy

if TYPE_CHECKING:
    from pparallel.interfaces.collective.algorithms import Operation, is_plain
    from pparallel.interfaces.collective.collective import Collective
    from pparallel.interfaces.collective.config import CollectiveConfig
    from pparallel.interfaces.collective.messages import USER_TAGS
    from pparallel.interfaces.collective.work import ReduceOp, Work

__all__ = [
    "USER_TAGS",
    "Collective",
    "CollectiveConfig",
    "Operation",
    "ReduceOp",
    "Work",
    "is_plain",
]

if not TYPE_CHECKING:  # a config needs no more than its own module
    __getattr__, __dir__ = lazy.attributes(
        __name__,
        {
            f"{__name__}.algorithms": ("Operation", "is_plain"),
            f"{__name__}.collective": ("Collective",),
            f"{__name__}.config": ("CollectiveConfig",),
            f"{__name__}.messages": ("USER_TAGS",),
            f"{__name__}.work": ("ReduceOp", "Work"),
        },
    )
