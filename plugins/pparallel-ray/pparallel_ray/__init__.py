"""pparallel on Ray: members, workers and stored values where Ray schedules them.

Importing this, or a config, imports no Ray: the folders of the backends have nothing in their
``__init__.py`` but their docstring.
"""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_ray.launcher.config import RayLauncherConfig
from pparallel_ray.ordered_server.config import RayOrderedServerConfig
from pparallel_ray.pool.config import RayPoolConfig
from pparallel_ray.transport.config import RayTransportConfig

__all__ = [
    "RayLauncherConfig",
    "RayOrderedServerConfig",
    "RayPoolConfig",
    "RayTransportConfig",
    "pparallel_backends",
]

_INSTALL = "pip install pparallel-ray"


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the pool, the launcher, the transport and the ordered server ``ray``."""
    return [
        Backend(
            RayPoolConfig,
            "pparallel_ray.pool.pool:RayPool",
            install=_INSTALL,
            features=frozenset({"parallel", "isolated"}),
            requires=("ray",),
        ),
        Backend(
            RayLauncherConfig,
            "pparallel_ray.launcher.launcher:RayLauncher",
            install=_INSTALL,
            features=frozenset({"env", "hears", "isolated", "resources"}),
            reach=frozenset({"machines"}),
            requires=("ray",),
            defaults={"transport": "ray"},
        ),
        Backend(
            RayTransportConfig,
            "pparallel_ray.transport.transport:RayTransport",
            install=_INSTALL,
            features=frozenset({"ordered"}),
            requires=("ray",),
        ),
        Backend(
            RayOrderedServerConfig,
            "pparallel_ray.ordered_server.server:RayOrderedServer",
            install=_INSTALL,
            requires=("ray",),
        ),
    ]
