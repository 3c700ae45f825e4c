"""What stands on torch.distributed: a transport on torch RPC, a launcher on torchrun's agent."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl

__all__ = ["pparallel_backends"]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the transport ``torch_rpc`` and the launcher ``torchrun``."""
    return []
