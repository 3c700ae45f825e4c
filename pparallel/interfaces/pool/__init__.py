"""Pool: run functions on a fixed set of workers."""

from __future__ import annotations

from pparallel.interfaces.pool.batch import NO_SINK, Batch, Carry, Observer, Sink, Style
from pparallel.interfaces.pool.config import PoolConfig
from pparallel.interfaces.pool.names import name_of
from pparallel.interfaces.pool.pool import Pool
from pparallel.interfaces.pool.progress import Bar, MakeBar, Meter, Metering, Progress
from pparallel.interfaces.pool.results import PoolResult
from pparallel.interfaces.pool.state import PoolState
from pparallel.interfaces.pool.stream import QUICK_LOOKAHEAD, ResultStream

__all__ = [
    "NO_SINK",
    "QUICK_LOOKAHEAD",
    "Bar",
    "Batch",
    "Carry",
    "MakeBar",
    "Meter",
    "Metering",
    "Observer",
    "Pool",
    "PoolConfig",
    "PoolResult",
    "PoolState",
    "Progress",
    "ResultStream",
    "Sink",
    "Style",
    "name_of",
]
