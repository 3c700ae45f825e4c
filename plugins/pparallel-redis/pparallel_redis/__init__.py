"""pparallel on Redis: an ordered server for threads, processes and machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel import lazy
from pparallel.plugin import Backend, hookimpl

if TYPE_CHECKING:
    from pparallel_redis.config import RedisOrderedServerConfig, RedisSentinel, RedisTls

__all__ = ["RedisOrderedServerConfig", "RedisSentinel", "RedisTls", "pparallel_backends"]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the ordered server ``redis``."""
    return [
        Backend(
            "ordered_server",
            "redis",
            config="pparallel_redis.config:RedisOrderedServerConfig",
            target="pparallel_redis.server:RedisOrderedServer",
            features=frozenset({"forks"}),
        )
    ]


if not TYPE_CHECKING:  # what lists the backends imports no config
    __getattr__, __dir__ = lazy.attributes(__name__, {"pparallel_redis.config": __all__})
