"""One program, many backends: parallel and distributed PyTorch beyond data-parallel training.

``build`` makes a runtime, or one component, from a config; ``launch`` runs a function in every
member of a job. Names are imported when they are first used, so that ``import pparallel`` costs
next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy

if TYPE_CHECKING:
    from pparallel.builder import Runtime, RuntimeConfig, build, load
    from pparallel.builder.launch import launch
    from pparallel.interfaces.collective import Collective, CollectiveConfig
    from pparallel.interfaces.launcher import Launcher, LauncherConfig
    from pparallel.interfaces.ordered_server import OrderedServer, OrderedServerConfig
    from pparallel.interfaces.placer import Device, Placement, Placer, PlacerConfig
    from pparallel.interfaces.pool import Pool, PoolConfig
    from pparallel.interfaces.reducer import Reducer, ReducerConfig
    from pparallel.interfaces.serializer import Serializer, SerializerConfig
    from pparallel.interfaces.transport import Transport, TransportConfig
    from pparallel.models.connections import measure_connections
    from pparallel.models.sizes import ModelSizeEstimator
    from pparallel.patterns import Parallel, Parallelizable, SlavePipe, SyncMaster
    from pparallel.patterns.model_wrapper import MpModelWrapper
    from pparallel.patterns.queues import SimpleP2PQueue, SimpleQueue
    from pparallel.patterns.serial_executor import MpSerialExecutor
    from pparallel.runtime.future import collect_all, wait_all
    from pparallel.runtime.member import Member
    from pparallel.runtime.rpc import RemoteRef, RpcFuture, RpcGroup

    __version__: str

__all__ = [
    "Collective",
    "CollectiveConfig",
    "Device",
    "Launcher",
    "LauncherConfig",
    "Member",
    "ModelSizeEstimator",
    "MpModelWrapper",
    "MpSerialExecutor",
    "OrderedServer",
    "OrderedServerConfig",
    "Parallel",
    "Parallelizable",
    "Placement",
    "Placer",
    "PlacerConfig",
    "Pool",
    "PoolConfig",
    "Reducer",
    "ReducerConfig",
    "RemoteRef",
    "RpcFuture",
    "RpcGroup",
    "Runtime",
    "RuntimeConfig",
    "Serializer",
    "SerializerConfig",
    "SimpleP2PQueue",
    "SimpleQueue",
    "SlavePipe",
    "SyncMaster",
    "Transport",
    "TransportConfig",
    "build",
    "collect_all",
    "launch",
    "load",
    "measure_connections",
    "wait_all",
]

_HOMES = {
    "pparallel.builder": ("Runtime", "RuntimeConfig", "build", "launch", "load"),
    "pparallel.interfaces.collective": ("Collective", "CollectiveConfig"),
    "pparallel.interfaces.launcher": ("Launcher", "LauncherConfig"),
    "pparallel.interfaces.ordered_server": ("OrderedServer", "OrderedServerConfig"),
    "pparallel.interfaces.placer": ("Device", "Placement", "Placer", "PlacerConfig"),
    "pparallel.interfaces.pool": ("Pool", "PoolConfig"),
    "pparallel.interfaces.reducer": ("Reducer", "ReducerConfig"),
    "pparallel.interfaces.serializer": ("Serializer", "SerializerConfig"),
    "pparallel.interfaces.transport": ("Transport", "TransportConfig"),
    "pparallel.models.connections": ("measure_connections",),
    "pparallel.models.sizes": ("ModelSizeEstimator",),
    "pparallel.patterns": ("Parallel", "Parallelizable", "SlavePipe", "SyncMaster"),
    "pparallel.patterns.model_wrapper": ("MpModelWrapper",),
    "pparallel.patterns.queues": ("SimpleP2PQueue", "SimpleQueue"),
    "pparallel.patterns.serial_executor": ("MpSerialExecutor",),
    "pparallel.runtime.future": ("collect_all", "wait_all"),
    "pparallel.runtime.member": ("Member",),
    "pparallel.runtime.rpc": ("RemoteRef", "RpcFuture", "RpcGroup"),
}
_NAMES = {name for names in _HOMES.values() for name in names}
_attribute, __dir__ = lazy.attributes(__name__, _HOMES)


def _imported(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("pparallel")
    if name == "errors":
        from importlib import import_module

        return import_module("pparallel.errors")
    if name not in _NAMES and (home := _home(name)):
        message = f"module 'pparallel' has no attribute {name!r}: from {home} import {name}"
        raise AttributeError(message, name=name, obj=None)
    return _attribute(name)


def _home(name: str) -> str:
    """Return the module of an error or of a backend's config; an empty string: it is neither."""
    from pparallel import errors

    if name in errors.__dict__ and name.endswith("Error"):
        return errors.__name__
    if not name.endswith("Config"):
        return ""
    from pparallel.registry import default_registry

    return default_registry().home(name)


if not TYPE_CHECKING:  # else mypy takes any name at all for one of ours
    __getattr__ = _imported
