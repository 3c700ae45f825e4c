"""What stands on torch.distributed: collectives, a transport on torch RPC, torchrun's launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy
from pparallel.plugin import Backend, hookimpl

if TYPE_CHECKING:
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
            "collective",
            "gloo",
            config="pparallel_torch.config:GlooCollectiveConfig",
            target="pparallel_torch.collective.gloo:GlooCollective",
            install=_INSTALL,
            features=frozenset({"any_source", "tags"}),
            reach=frozenset({"processes", "machines"}),
            requires=("torch", "numpy"),
        ),
        Backend(
            "collective",
            "nccl",
            config="pparallel_torch.config:NcclCollectiveConfig",
            target="pparallel_torch.collective.nccl:NcclCollective",
            install=_INSTALL,
            features=frozenset({"any_source", "tags", "cuda"}),
            reach=frozenset({"processes", "machines"}),
            requires=("torch", "numpy"),
        ),
        Backend(
            "transport",
            "torch_rpc",
            config="pparallel_torch.config:TorchRpcTransportConfig",
            target="pparallel_torch.rpc.transport:TorchRpcTransport",
            install=_INSTALL,
            features=frozenset({"ordered"}),
            reach=frozenset({"processes", "machines"}),
            requires=("torch", "numpy"),
        ),
        Backend(
            "launcher",
            "torchrun",
            config="pparallel_torch.config:TorchrunLauncherConfig",
            target="pparallel_torch.torchrun.launcher:TorchrunLauncher",
            install=_INSTALL,
            features=frozenset({"env", "hears", "isolated"}),
            reach=frozenset({"processes", "machines"}),
            requires=("torch",),
        ),
    ]


if not TYPE_CHECKING:  # what lists the backends imports no config
    __getattr__, __dir__ = lazy.attributes(__name__, {"pparallel_torch.config": __all__})
