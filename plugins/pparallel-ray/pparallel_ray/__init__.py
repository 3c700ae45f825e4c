"""pparallel on Ray: members, workers and stored values where Ray schedules them.

Importing this, or a config, imports no Ray: the folders of the backends have nothing in their
``__init__.py`` but their docstring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy
from pparallel.plugin import Backend, hookimpl

if TYPE_CHECKING:
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
            "pool",
            "ray",
            config="pparallel_ray.pool.config:RayPoolConfig",
            target="pparallel_ray.pool.pool:RayPool",
            install=_INSTALL,
            features=frozenset({"parallel", "isolated"}),
            requires=("ray",),
        ),
        Backend(
            "launcher",
            "ray",
            config="pparallel_ray.launcher.config:RayLauncherConfig",
            target="pparallel_ray.launcher.launcher:RayLauncher",
            install=_INSTALL,
            features=frozenset({"env", "hears", "isolated", "resources"}),
            reach=frozenset({"machines"}),
            requires=("ray",),
            defaults={"transport": "ray"},
        ),
        Backend(
            "transport",
            "ray",
            config="pparallel_ray.transport.config:RayTransportConfig",
            target="pparallel_ray.transport.transport:RayTransport",
            install=_INSTALL,
            features=frozenset({"ordered"}),
            requires=("ray",),
        ),
        Backend(
            "ordered_server",
            "ray",
            config="pparallel_ray.ordered_server.config:RayOrderedServerConfig",
            target="pparallel_ray.ordered_server.server:RayOrderedServer",
            install=_INSTALL,
            requires=("ray",),
        ),
    ]


if not TYPE_CHECKING:  # what lists the backends imports no config
    __getattr__, __dir__ = lazy.attributes(
        __name__,
        {
            "pparallel_ray.launcher.config": ("RayLauncherConfig",),
            "pparallel_ray.ordered_server.config": ("RayOrderedServerConfig",),
            "pparallel_ray.pool.config": ("RayPoolConfig",),
            "pparallel_ray.transport.config": ("RayTransportConfig",),
        },
    )
