"""Config of the collective ``shm``."""

from __future__ import annotations

from typing import Literal

from pparallel.interfaces.collective import CollectiveConfig
from pparallel.interfaces.serializer import SerializerConfig


class ShmCollectiveConfig(CollectiveConfig, frozen=True):
    """Operations between processes of one machine, through memory that they share.

    Attributes:
        backend: the name of the backend.
        serializer: what turns objects into bytes for the object forms; by default the runtime's.
    """

    backend: Literal["shm"] = "shm"
    serializer: SerializerConfig | None = None
