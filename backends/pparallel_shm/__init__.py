"""Collectives among the processes of one machine, through shared memory."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_shm.config import ShmCollectiveConfig

__all__ = ["ShmCollectiveConfig", "pparallel_backends"]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the collective ``shm``."""
    return [
        Backend(
            ShmCollectiveConfig,
            "pparallel_shm.collective:ShmCollective",
            install="pip install 'pparallel[torch]'",
            features=frozenset({"any_source", "tags"}),
            reach=frozenset({"threads", "processes"}),
            requires=("torch",),
        ),
    ]
