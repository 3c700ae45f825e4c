"""Ordered servers that need nothing but this machine."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_servers.config import HostedOrderedServerConfig, MemoryOrderedServerConfig

__all__ = ["HostedOrderedServerConfig", "MemoryOrderedServerConfig", "pparallel_backends"]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the ordered servers ``memory`` and ``hosted``."""
    return [
        Backend(
            MemoryOrderedServerConfig,
            "pparallel_servers.memory:MemoryOrderedServer",
            reach=frozenset({"threads"}),
        ),
        Backend(HostedOrderedServerConfig, "pparallel_servers.hosted:HostedOrderedServer"),
    ]
