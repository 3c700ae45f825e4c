"""What the ordered servers of this package are told."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

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


class SqliteOrderedServerConfig(OrderedServerConfig, frozen=True):
    """Values in a file, for processes of one machine, now and later.

    Attributes:
        backend: selects this backend.
        path: the file, on a local disk; made if there is none. Its folder must exist.
        serializer: what turns values into bytes; one that may run code needs ``trusted``.
        trusted: allow a serializer that may run code when it reads: everybody who can write to the
            file can then run code in whoever opens it.
        synchronous: what an acknowledged push survives: ``full`` the end of power, ``normal`` the
            end of every process.
        timeout: seconds to wait while others keep the file locked.
        poll: seconds between two looks for what other processes pushed, while somebody waits.
    """

    backend: Literal["sqlite"] = "sqlite"
    path: Path
    serializer: SerializerConfig = Field(default={"backend": "safe"}, validate_default=True)
    trusted: bool = False
    synchronous: Literal["full", "normal"] = "full"
    timeout: float = Field(default=30.0, gt=0)
    poll: float = Field(default=0.005, gt=0)
