"""Transport between processes of one machine: Unix sockets, and shared memory for what is large."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_ipc.config import IpcTransportConfig

__all__ = ["IpcTransportConfig", "pparallel_backends"]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the transport ``ipc``."""
    return [
        Backend(
            IpcTransportConfig,
            "pparallel_ipc.transport:IpcTransport",
            features=frozenset({"ordered"}),
            reach=frozenset({"threads", "processes"}),
        )
    ]
