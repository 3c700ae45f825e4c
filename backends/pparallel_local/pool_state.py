"""Where in its life a pool is."""

from __future__ import annotations

from pparallel.interfaces.pool import PoolState

__all__ = ["PoolState"]
