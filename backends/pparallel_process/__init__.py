"""Pools whose workers are processes of this machine."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_process.config import IsolatedPoolConfig, P2PPoolConfig, ProcessPoolConfig

__all__ = ["IsolatedPoolConfig", "P2PPoolConfig", "ProcessPoolConfig", "pparallel_backends"]

_FEATURES = frozenset({"parallel", "isolated"})


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the pool that gives work to idle processes, and the one that deals it in turn."""
    return [
        Backend(ProcessPoolConfig, "pparallel_process.pool:ProcessPool", features=_FEATURES),
        Backend(P2PPoolConfig, "pparallel_process.pool:P2PPool", features=_FEATURES),
    ]
