"""pparallel on Redis: an ordered server for threads, processes and machines."""

from __future__ import annotations

from pparallel.plugin import Backend, hookimpl
from pparallel_redis.config import RedisOrderedServerConfig, RedisSentinel, RedisTls

__all__ = ["RedisOrderedServerConfig", "RedisSentinel", "RedisTls", "pparallel_backends"]


@hookimpl
def pparallel_backends() -> list[Backend]:
    """Offer the ordered server ``redis``."""
    return [
        Backend(
            RedisOrderedServerConfig,
            "pparallel_redis.server:RedisOrderedServer",
            features=frozenset({"forks"}),
        )
    ]
