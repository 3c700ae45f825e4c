"""``machin.parallel.pool``: pools on native ones, and one whose parts can be overridden.

Bottom-up: ``states``, ``results`` and ``road`` are what all pools share; ``notes``, ``messages``,
``working`` (what runs in a worker), ``workers``, ``ledger`` and ``engine`` make up the engine of
``base``; ``native`` translates to native pools, for ``pools`` and ``contexts``.
"""

from __future__ import annotations

from pparallel.compat.machin.pool.base import BasePool
from pparallel.compat.machin.pool.contexts import (
    CtxPool,
    CtxPoolStorage,
    CtxThreadPool,
    proxy_ctx_caller,
)
from pparallel.compat.machin.pool.pools import P2PPool, Pool, ThreadPool
from pparallel.compat.machin.pool.results import (
    AsyncResult,
    IMapIterator,
    IMapUnorderedIterator,
    MapResult,
)
from pparallel.compat.machin.pool.states import PoolStates

__all__ = [
    "AsyncResult",
    "BasePool",
    "CtxPool",
    "CtxPoolStorage",
    "CtxThreadPool",
    "IMapIterator",
    "IMapUnorderedIterator",
    "MapResult",
    "P2PPool",
    "Pool",
    "PoolStates",
    "ThreadPool",
    "proxy_ctx_caller",
]
