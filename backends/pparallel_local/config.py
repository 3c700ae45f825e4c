"""Configs of the local backends."""

from __future__ import annotations

from typing import Literal

from typing_extensions import override

from pparallel.interfaces.collective import CollectiveConfig
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.pool import PoolConfig
from pparallel.interfaces.serializer import SerializerConfig
from pparallel.interfaces.transport import TransportConfig


class SerialPoolConfig(PoolConfig, frozen=True):
    """A pool that runs each task in the thread that hands it over, for debugging.

    ``size`` is how many workers it stands for: tasks take turns at their ``worker_contexts``.

    Attributes:
        backend: the name of the backend.
        size: how many workers it stands for; ``None``: one, or one per context.
    """

    backend: Literal["serial"] = "serial"

    @property
    @override
    def workers(self) -> int:
        return self.size or len(self.worker_contexts or ()) or 1


class ThreadPoolConfig(PoolConfig, frozen=True):
    """A pool of threads: they share memory and, outside native code, the GIL.

    Attributes:
        backend: the name of the backend.
    """

    backend: Literal["thread"] = "thread"


class LocalTransportConfig(TransportConfig, frozen=True):
    """A transport between members that are threads of one process.

    Attributes:
        backend: the name of the backend.
    """

    backend: Literal["local"] = "local"


class LocalCollectiveConfig(CollectiveConfig, frozen=True):
    """Operations between members that are threads of one process.

    Attributes:
        backend: the name of the backend.
        serializer: what turns objects into bytes for the object forms; by default the runtime's.
    """

    backend: Literal["local"] = "local"
    serializer: SerializerConfig | None = None


class ThreadLauncherConfig(LauncherConfig, frozen=True):
    """A launcher whose ranks are threads of this process.

    Attributes:
        backend: the name of the backend.
    """

    backend: Literal["thread"] = "thread"
