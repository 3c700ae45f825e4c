"""Pools whose workers are processes of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel.plugin import Backend, hookimpl
from pparallel_process.config import IsolatedPoolConfig, P2PPoolConfig, ProcessPoolConfig

if TYPE_CHECKING:
    from pparallel_process.pool import P2PPool, ProcessPool

__all__ = [
    "IsolatedPoolConfig",
    "P2PPool",
    "P2PPoolConfig",
    "ProcessPool",
    "ProcessPoolConfig",
    "pparallel_backends",
]

_FEATURES = frozenset({"parallel", "isolated"})


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the pool that gives work to idle processes, and the one that deals it in turn."""
    return [
        Backend(ProcessPoolConfig, "pparallel_process.pool:ProcessPool", features=_FEATURES),
        Backend(P2PPoolConfig, "pparallel_process.pool:P2PPool", features=_FEATURES),
    ]


def _imported(name: str) -> object:
    if name not in ("P2PPool", "ProcessPool"):
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from pparallel_process import pool

    return getattr(pool, name)


if not TYPE_CHECKING:  # the classes take a while to import, and a config does not need them
    __getattr__ = _imported
