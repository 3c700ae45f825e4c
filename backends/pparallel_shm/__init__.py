"""Collectives among the processes of one machine, through shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy
from pparallel.plugin import Backend, hookimpl

if TYPE_CHECKING:
    from pparallel_shm.config import ShmCollectiveConfig

__all__ = ["ShmCollectiveConfig", "pparallel_backends"]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the collective ``shm``."""
    return [
        Backend(
            "collective",
            "shm",
            config="pparallel_shm.config:ShmCollectiveConfig",
            target="pparallel_shm.collective:ShmCollective",
            install="pip install 'pparallel[torch]'",
            features=frozenset({"any_source", "tags"}),
            reach=frozenset({"threads", "processes"}),
            requires=("torch",),
        ),
    ]


if not TYPE_CHECKING:  # what lists the backends imports no config
    __getattr__, __dir__ = lazy.attributes(__name__, {"pparallel_shm.config": __all__})
