"""Transport between processes and machines on ZeroMQ, encrypted and authenticated by CURVE."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl

__all__ = ["pparallel_backends"]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the transport ``zmq``."""
    return []
