"""Transport between processes and machines on ZeroMQ, authenticated, and encrypted on TCP."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_zmq.config import ZmqTransportConfig

__all__ = ["ZmqTransportConfig", "pparallel_backends"]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the transport ``zmq``."""
    return [
        Backend(
            ZmqTransportConfig,
            "pparallel_zmq.transport:ZmqTransport",
            install="pip install 'pparallel[zmq]'",
            features=frozenset({"ordered"}),
            requires=("zmq",),
        )
    ]
