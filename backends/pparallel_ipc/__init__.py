"""Transport between processes of one machine: Unix sockets, and shared memory for what is large."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl

__all__ = ["pparallel_backends"]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the transport ``ipc``."""
    return []
