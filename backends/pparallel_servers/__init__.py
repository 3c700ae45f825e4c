"""Ordered servers that need nothing but this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy
from pparallel.plugin import Backend, hookimpl

if TYPE_CHECKING:
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
            "ordered_server",
            "memory",
            config="pparallel_servers.config:MemoryOrderedServerConfig",
            target="pparallel_servers.memory:MemoryOrderedServer",
            reach=frozenset({"threads"}),
        ),
        Backend(
            "ordered_server",
            "hosted",
            config="pparallel_servers.config:HostedOrderedServerConfig",
            target="pparallel_servers.hosted:HostedOrderedServer",
        ),
        Backend(
            "ordered_server",
            "sqlite",
            config="pparallel_servers.config:SqliteOrderedServerConfig",
            target="pparallel_servers.sqlite:SqliteOrderedServer",
            install="a Python that was built with sqlite",
            features=frozenset({"forks"}),
            requires=("_sqlite3",),
            reach=frozenset({"threads", "processes"}),
        ),
    ]


if not TYPE_CHECKING:  # what lists the backends imports no config
    __getattr__, __dir__ = lazy.attributes(__name__, {"pparallel_servers.config": __all__})
