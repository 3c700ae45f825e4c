"""Config of the collective ``shm``."""

from __future__ import annotations

from typing import Literal

from pydantic import ByteSize, Field

from pparallel.interfaces.collective import CollectiveConfig
from pparallel.interfaces.serializer import SerializerConfig


class ShmCollectiveConfig(CollectiveConfig, frozen=True):
    """Operations between processes of one machine, through memory that they share.

    Each group has memory of its own: two slots for each member, and two more. What is larger than
    a slot goes through in pieces.

    Attributes:
        backend: the name of the backend.
        serializer: what turns objects into bytes for the object forms; by default the runtime's.
        slot: how large one slot is, in bytes or with a unit; that of the first member counts.
    """

    backend: Literal["shm"] = "shm"
    serializer: SerializerConfig | None = None
    slot: ByteSize = Field(default=ByteSize(2 << 20), ge=4096, le=1 << 30)
