"""Ordered servers that need nothing but this machine."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_servers.config import (
    HostedOrderedServerConfig,
    MemoryOrderedServerConfig,
    SqliteOrderedServerConfig,
)

__all__ = [
    "HostedOrderedServerConfig",
    "MemoryOrderedServerConfig",
    "SqliteOrderedServerConfig",
    "pparallel_backends",
]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the ordered servers ``memory``, ``hosted`` and ``sqlite``."""
    return [
        Backend(
            MemoryOrderedServerConfig,
            "pparallel_servers.memory:MemoryOrderedServer",
            reach=frozenset({"threads"}),
        ),
        Backend(HostedOrderedServerConfig, "pparallel_servers.hosted:HostedOrderedServer"),
        Backend(
            SqliteOrderedServerConfig,
            "pparallel_servers.sqlite:SqliteOrderedServer",
            install="a Python that was built with sqlite",
            features=frozenset({"forks"}),
            requires=("_sqlite3",),
            reach=frozenset({"threads", "processes"}),
        ),
    ]
