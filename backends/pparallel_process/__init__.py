"""Pools whose workers, and a launcher whose ranks, are processes of this machine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pparallel.plugin import Backend, hookimpl
from pparallel_process.config import (
    IsolatedPoolConfig,
    P2PPoolConfig,
    ProcessLauncherConfig,
    ProcessPoolConfig,
)

if TYPE_CHECKING:
    from pparallel_process.launcher.process_launcher import ProcessLauncher
    from pparallel_process.pool import P2PPool, ProcessPool

__all__ = [
    "IsolatedPoolConfig",
    "P2PPool",
    "P2PPoolConfig",
    "ProcessLauncher",
    "ProcessLauncherConfig",
    "ProcessPool",
    "ProcessPoolConfig",
    "pparallel_backends",
]

_HOMES = {
    "P2PPool": "pparallel_process.pool",
    "ProcessLauncher": "pparallel_process.launcher.process_launcher",
    "ProcessPool": "pparallel_process.pool",
}
_FEATURES = frozenset({"parallel", "isolated"})


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the pool that gives work to idle processes, the one that deals it, and the launcher."""
    return [
        Backend(ProcessPoolConfig, "pparallel_process.pool:ProcessPool", features=_FEATURES),
        Backend(P2PPoolConfig, "pparallel_process.pool:P2PPool", features=_FEATURES),
        Backend(
            ProcessLauncherConfig,
            f"{_HOMES['ProcessLauncher']}:ProcessLauncher",
            features=frozenset({"env", "hears", "isolated"}),
            reach=frozenset({"processes"}),
        ),
    ]


def _imported(name: str) -> object:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(_HOMES[name]), name)


if not TYPE_CHECKING:  # the classes take a while to import, and a config does not need them
    __getattr__ = _imported
