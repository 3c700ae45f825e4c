"""Transport between processes of one machine: Unix sockets, and shared memory for what is large."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy
from pparallel.plugin import Backend, hookimpl

if TYPE_CHECKING:
    from pparallel_ipc.config import IpcTransportConfig

__all__ = ["IpcTransportConfig", "pparallel_backends"]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the transport ``ipc``."""
    return [
        Backend(
            "transport",
            "ipc",
            config="pparallel_ipc.config:IpcTransportConfig",
            target="pparallel_ipc.transport:IpcTransport",
            features=frozenset({"ordered"}),
            reach=frozenset({"threads", "processes"}),
        )
    ]


if not TYPE_CHECKING:  # what lists the backends imports no config
    __getattr__, __dir__ = lazy.attributes(__name__, {"pparallel_ipc.config": __all__})
