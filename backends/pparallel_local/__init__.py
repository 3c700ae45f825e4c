"""Backends that need nothing but the standard library and this process."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_local.config import (
    LocalCollectiveConfig,
    LocalTransportConfig,
    SerialPoolConfig,
    ThreadLauncherConfig,
    ThreadPoolConfig,
)

__all__ = [
    "LocalCollectiveConfig",
    "LocalTransportConfig",
    "SerialPoolConfig",
    "ThreadLauncherConfig",
    "ThreadPoolConfig",
    "pparallel_backends",
]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the pools, the transport, the collective and the launcher that live in one process."""
    return [
        Backend(
            SerialPoolConfig,
            "pparallel_local.serial_pool:SerialPool",
            features=frozenset({"references"}),
        ),
        Backend(
            ThreadPoolConfig,
            "pparallel_local.thread_pool:ThreadPool",
            features=frozenset({"references", "parallel"}),
        ),
        Backend(
            LocalTransportConfig,
            "pparallel_local.transport:LocalTransport",
            features=frozenset({"ordered"}),
            reach=frozenset({"threads"}),
        ),
        Backend(
            LocalCollectiveConfig,
            "pparallel_local.collective:LocalCollective",
            install="pip install 'pparallel[torch]'",
            features=frozenset({"any_source", "tags", "cuda"}),
            reach=frozenset({"threads"}),
            requires=("torch",),
        ),
        Backend(
            ThreadLauncherConfig,
            "pparallel_local.thread_launcher:ThreadLauncher",
            features=frozenset({"hears"}),
            reach=frozenset({"threads"}),
        ),
    ]
