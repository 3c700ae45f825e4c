"""What stands on torch.distributed: a transport on torch RPC, a launcher on torchrun's agent."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_torch.config import TorchRpcTransportConfig, TorchrunLauncherConfig

__all__ = ["TorchRpcTransportConfig", "TorchrunLauncherConfig", "pparallel_backends"]

_INSTALL = "pip install 'pparallel[torch]'"


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the transport ``torch_rpc`` and the launcher ``torchrun``."""
    return [
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
