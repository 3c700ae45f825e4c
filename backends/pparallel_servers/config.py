"""What the ordered servers of this package are told."""

from __future__ import annotations

from typing import Literal

from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.interfaces.serializer import SerializerConfig


class MemoryOrderedServerConfig(OrderedServerConfig, frozen=True):
    """Values in this process, shared by the members of a job that are its threads.

    Attributes:
        backend: selects this backend.
        serializer: what turns values into snapshots; by default the runtime's.
    """

    backend: Literal["memory"] = "memory"
    serializer: SerializerConfig | None = None


class HostedOrderedServerConfig(OrderedServerConfig, frozen=True):
    """Values kept by one member and served to the others.

    Attributes:
        backend: selects this backend.
        host: the member that keeps the values; by default the first.
        serializer: what turns values into snapshots; by default the runtime's.
    """

    backend: Literal["hosted"] = "hosted"
    host: str | None = None
    serializer: SerializerConfig | None = None
