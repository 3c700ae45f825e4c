"""Backends for pparallel."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl

from pparallel_example.ordered_server_config import (
    ExampleOrderedServerConfig,
)
from pparallel_example.pool_config import ExamplePoolConfig

__all__ = [
    "ExampleOrderedServerConfig",
    "ExamplePoolConfig",
    "pparallel_backends",
]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the backends; what they need is imported when they are built."""
    return [
        Backend(
            "pool",
            "example",
            config="pparallel_example.pool_config:ExamplePoolConfig",
            target="pparallel_example.pool:ExamplePool",
            features=frozenset({"references", "parallel"}),
            interface_version=1,
        ),
        Backend(
            "ordered_server",
            "example",
            config="pparallel_example.ordered_server_config:ExampleOrderedServerConfig",
            target="pparallel_example.ordered_server:ExampleOrderedServer",
            reach=frozenset({"threads", "processes"}),
            interface_version=1,
        ),
    ]
