"""Backends that need nothing but the standard library and this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy
from pparallel.plugin import Backend, hookimpl

if TYPE_CHECKING:
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
            "pool",
            "serial",
            config="pparallel_local.config:SerialPoolConfig",
            target="pparallel_local.serial_pool:SerialPool",
            features=frozenset({"references"}),
        ),
        Backend(
            "pool",
            "thread",
            config="pparallel_local.config:ThreadPoolConfig",
            target="pparallel_local.thread_pool:ThreadPool",
            features=frozenset({"references", "parallel"}),
        ),
        Backend(
            "transport",
            "local",
            config="pparallel_local.config:LocalTransportConfig",
            target="pparallel_local.transport:LocalTransport",
            features=frozenset({"ordered"}),
            reach=frozenset({"threads"}),
        ),
        Backend(
            "collective",
            "local",
            config="pparallel_local.config:LocalCollectiveConfig",
            target="pparallel_local.collective:LocalCollective",
            install="pip install 'pparallel[torch]'",
            features=frozenset({"any_source", "tags", "cuda"}),
            reach=frozenset({"threads"}),
            requires=("torch",),
        ),
        Backend(
            "launcher",
            "thread",
            config="pparallel_local.config:ThreadLauncherConfig",
            target="pparallel_local.thread_launcher:ThreadLauncher",
            features=frozenset({"hears"}),
            reach=frozenset({"threads"}),
        ),
    ]


if not TYPE_CHECKING:  # what lists the backends imports no config
    __getattr__, __dir__ = lazy.attributes(__name__, {"pparallel_local.config": __all__})
