"""Pools whose workers, and a launcher whose ranks, are processes of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy
from pparallel.plugin import Backend, hookimpl

if TYPE_CHECKING:
    from pparallel_process.config import (
        IsolatedPoolConfig,
        P2PPoolConfig,
        ProcessLauncherConfig,
        ProcessPoolConfig,
    )
    from pparallel_process.launcher.process_launcher import ProcessLauncher
    from pparallel_process.pool import P2PPool, ProcessPool

__all__ = [
    "IsolatedPoolConfig",
    "P2PPool",
    "P2PPoolConfig",
    "ProcessLauncher",
    "ProcessLauncherConfig",
    "ProcessPool",
    "ProcessPoolConfig",
    "pparallel_backends",
]

_FEATURES = frozenset({"parallel", "isolated"})


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the pool that gives work to idle processes, the one that deals it, and the launcher."""
    return [
        Backend(
            "pool",
            "process",
            config="pparallel_process.config:ProcessPoolConfig",
            target="pparallel_process.pool:ProcessPool",
            features=_FEATURES,
        ),
        Backend(
            "pool",
            "p2p",
            config="pparallel_process.config:P2PPoolConfig",
            target="pparallel_process.pool:P2PPool",
            features=_FEATURES,
        ),
        Backend(
            "launcher",
            "process",
            config="pparallel_process.config:ProcessLauncherConfig",
            target="pparallel_process.launcher.process_launcher:ProcessLauncher",
            features=frozenset({"env", "hears", "isolated"}),
            reach=frozenset({"processes"}),
        ),
    ]


if not TYPE_CHECKING:  # what lists the backends imports no config
    __getattr__, __dir__ = lazy.attributes(
        __name__,
        {
            "pparallel_process.config": (
                "IsolatedPoolConfig",
                "P2PPoolConfig",
                "ProcessLauncherConfig",
                "ProcessPoolConfig",
            ),
            "pparallel_process.launcher.process_launcher": ("ProcessLauncher",),
            "pparallel_process.pool": ("P2PPool", "ProcessPool"),
        },
    )
