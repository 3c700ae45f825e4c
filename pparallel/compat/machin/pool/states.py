"""Where in its life a pool is."""

from __future__ import annotations

from enum import Enum, unique


@unique
class PoolStates(Enum):
    """The states of a pool: it takes calls, it finishes those it has, it has been ended."""

    RUN = 0
    CLOSE = 1
    TERMINATE = 2
