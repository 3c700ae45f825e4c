"""The Ray cluster that a program is connected to, or starts.

``Cluster(config.cluster)`` is one component's use of it: ``open()`` connects or starts what is
needed, ``close()`` lets go, and the last to let go disconnects or ends what was ours. Ray itself is
imported with ``Cluster``, and not before: a config needs none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pparallel_ray.cluster.config import RayConnection

if TYPE_CHECKING:
    from pparallel_ray.cluster.cluster import Cluster

__all__ = ["Cluster", "RayConnection"]


def __getattr__(name: str) -> Any:
    if name == "Cluster":
        return importlib.import_module("pparallel_ray.cluster.cluster").Cluster
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
