"""What the ordered server ``ray`` is told."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.interfaces.serializer import SerializerConfig
from pparallel_ray.cluster.config import RayConnection


class RayOrderedServerConfig(OrderedServerConfig, frozen=True):
    """Values kept by an actor of a Ray cluster.

    Attributes:
        backend: selects this backend.
        cluster: the Ray cluster to use; all members must be connected to the same.
        name: what other programs find it by; by default it is for the members of one job, and is
            the first member's.
        namespace: of Ray, in which the name is.
        detached: it outlives the program that opened it first, and ends with the cluster, or with
            ``ray.kill(ray.get_actor(name, namespace))``.
        open_timeout: seconds that members wait for the first to open it.
        serializer: what turns values into snapshots; by default the runtime's.
    """

    backend: Literal["ray"] = "ray"
    cluster: RayConnection = RayConnection()
    name: str | None = Field(default=None, min_length=1)
    namespace: str = Field(default="pparallel", min_length=1)
    detached: bool = False
    open_timeout: float = Field(default=60.0, gt=0)
    serializer: SerializerConfig | None = None

    @model_validator(mode="after")
    def _name_what_is_detached(self) -> Self:
        if self.detached and self.name is None:
            message = "nobody could find a detached server again that has no name: give one"
            raise PydanticCustomError("ray_detached", message)
        return self
