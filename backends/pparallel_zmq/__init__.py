"""Transport between processes and machines on ZeroMQ, authenticated and encrypted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy
from pparallel.plugin import Backend, hookimpl

if TYPE_CHECKING:
    from pparallel_zmq.config import ZmqTransportConfig

__all__ = ["ZmqTransportConfig", "pparallel_backends"]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the transport ``zmq``."""
    return [
        Backend(
            "transport",
            "zmq",
            config="pparallel_zmq.config:ZmqTransportConfig",
            target="pparallel_zmq.transport:ZmqTransport",
            install="pip install 'pparallel[zmq]'",
            features=frozenset({"ordered"}),
            requires=("zmq",),
        )
    ]


if not TYPE_CHECKING:  # what lists the backends imports no config
    __getattr__, __dir__ = lazy.attributes(__name__, {"pparallel_zmq.config": __all__})
