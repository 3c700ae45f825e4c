"""The config of the transport ``ray``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pparallel.interfaces.transport import TransportConfig
from pparallel_ray.cluster.config import RayConnection


class RayTransportConfig(TransportConfig, frozen=True):
    """Calls between members by calls of Ray's actors, large frames through its object store.

    Attributes:
        backend: selects this backend.
        cluster: the Ray cluster to use; members that were launched use that of the launching
            process.
        max_queued: bytes on their way from one member to another, or in the mailbox of one that
            does not take them; what is more waits at its sender.
    """

    backend: Literal["ray"] = "ray"
    cluster: RayConnection = RayConnection()
    max_queued: int = Field(default=64 * 2**20, ge=1)
