"""What the launcher ``ray`` is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.serializer import SerializerConfig
from pparallel_ray.cluster.config import RayConnection

Strategy = Literal["pack", "spread", "strict_pack", "strict_spread"]


class RayLauncherConfig(LauncherConfig, frozen=True):
    """Members are processes that Ray places on the machines of a cluster.

    What a member needs stands in its ``resources``: ``num_cpus``, ``num_gpus``, ``memory`` (bytes,
    or ``2GB``), and resources of the cluster by their names. All members get it, or none starts.

    Attributes:
        backend: selects this backend.
        cluster: the Ray cluster to use.
        num_cpus: CPUs that Ray reserves for a member which does not say how many it needs.
        placement: where members go. ``pack``: near one another; ``strict_pack``: on one machine;
            ``spread``: on as many machines as there is room on; ``strict_spread``: each on a
            machine of its own.
        start_timeout: seconds that members wait for their place while others use it, and then for
            their processes to start.
        growth_timeout: seconds that a cluster which has too little in all is given to grow, as it
            does with an autoscaler; 0: it is refused at once.
        runtime_env: what Ray prepares for members (``working_dir``, ``pip``, ``env_vars``, ...), as
            ``ray.remote`` takes it.
        serializer: what turns functions, arguments and results into bytes; by default the
            runtime's.
    """

    backend: Literal["ray"] = "ray"
    cluster: RayConnection = RayConnection()
    num_cpus: float = Field(default=1.0, ge=0)
    placement: Strategy = "pack"
    start_timeout: float = Field(default=60.0, gt=0)
    growth_timeout: float = Field(default=0.0, ge=0)
    runtime_env: Mapping[str, Any] = {}
    serializer: SerializerConfig | None = None
