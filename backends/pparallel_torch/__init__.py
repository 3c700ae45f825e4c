"""What stands on torch.distributed: collectives, a transport on torch RPC, torchrun's launcher."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_torch.config import (
    GlooCollectiveConfig,
    NcclCollectiveConfig,
    TorchRpcTransportConfig,
    TorchrunLauncherConfig,
)

__all__ = [
    "GlooCollectiveConfig",
    "NcclCollectiveConfig",
    "TorchRpcTransportConfig",
    "TorchrunLauncherConfig",
    "pparallel_backends",
]

_INSTALL = "pip install 'pparallel[torch]'"


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer ``torch_rpc``, ``torchrun``, ``gloo`` and ``nccl``."""
    return [
        Backend(
            GlooCollectiveConfig,
            "pparallel_torch.collective.gloo:GlooCollective",
            install=_INSTALL,
            features=frozenset({"any_source", "tags"}),
            reach=frozenset({"processes", "machines"}),
            requires=("torch", "numpy"),
        ),
        Backend(
            NcclCollectiveConfig,
            "pparallel_torch.collective.nccl:NcclCollective",
            install=_INSTALL,
            features=frozenset({"any_source", "tags", "cuda"}),
            reach=frozenset({"processes", "machines"}),
            requires=("torch", "numpy"),
        ),
        Backend(
            TorchRpcTransportConfig,
            "pparallel_torch.rpc.transport:TorchRpcTransport",
            install=_INSTALL,
            features=frozenset({"ordered"}),
            reach=frozenset({"processes", "machines"}),
            requires=("torch", "numpy"),
        ),
        Backend(
            TorchrunLauncherConfig,
            "pparallel_torch.torchrun.launcher:TorchrunLauncher",
            install=_INSTALL,
            features=frozenset({"env", "hears", "isolated"}),
            reach=frozenset({"processes", "machines"}),
            requires=("torch",),
        ),
    ]
