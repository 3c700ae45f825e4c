"""A master, a replica and the sentinels that watch them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from redis_servers import PASSWORD, RedisServer, need

from pparallel.testing.patience import until
from pparallel_redis import RedisOrderedServerConfig, RedisSentinel

SERVICE = "values"
_SENTINELS = 3
_AWAY = 1000  #: milliseconds after which a server counts as gone


class Watched:
    """Two servers, of which one is the master.

    Attributes:
        servers: both.
        sentinels: who watches them.
    """

    def __init__(self, servers: list[RedisServer], sentinels: list[RedisServer]) -> None:
        self.servers, self.sentinels = servers, sentinels

    def config(self, namespace: str, **options: Any) -> RedisOrderedServerConfig:
        """Return the config of what uses the master."""
        return self.watching(SERVICE, namespace, **options)

    def watching(self, service: str, namespace: str, **options: Any) -> RedisOrderedServerConfig:
        """Return a config that asks the sentinels for *service*."""
        addresses = tuple(f"127.0.0.1:{each.port}" for each in self.sentinels)
        sentinel = RedisSentinel(addresses=addresses, service=service, password=PASSWORD)
        given = {"sentinel": sentinel, "password": PASSWORD, "namespace": namespace, **options}
        return RedisOrderedServerConfig(**given)

    def master(self) -> int:
        """Return the port of the master, as the first sentinel knows it."""
        with self.sentinels[0].peek() as peek:
            found: Any = peek.sentinel_get_master_addr_by_name(SERVICE)
        return int(found[1])

    def is_settled(self) -> bool:
        """Return whether all know one another."""
        with self.sentinels[0].peek() as peek:
            state: Any = peek.sentinel_master(SERVICE)
        return int(state["num-slaves"]) == 1 and int(state["num-other-sentinels"]) == _SENTINELS - 1


@contextmanager
def watched() -> Iterator[Watched]:
    """Give them, once all know one another."""
    need("redis-sentinel")
    with ExitStack() as stack:
        folders = [
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redis-")))
            for _ in range(2 + _SENTINELS)
        ]
        auth = ("--masterauth", PASSWORD)
        master = RedisServer(folders[0], auth)
        replica = RedisServer(folders[1], (*auth, "--replicaof", f"127.0.0.1 {master.port}"))
        sentinels = [_sentinel(each, master.port) for each in folders[2:]]
        for each in (master, replica, *sentinels):
            stack.callback(each.close)
            each.start()
        found = Watched([master, replica], sentinels)
        until(found.is_settled, "the sentinels do not find one another")
        yield found


def _sentinel(folder: Path, port: int) -> RedisServer:
    quorum = _SENTINELS // 2 + 1
    lines = [
        f"sentinel monitor {SERVICE} 127.0.0.1 {port} {quorum}",
        f"sentinel auth-pass {SERVICE} {PASSWORD}",
        f"sentinel down-after-milliseconds {SERVICE} {_AWAY}",
        f"sentinel failover-timeout {SERVICE} 2000",
        f"sentinel sentinel-pass {PASSWORD}",
    ]
    config = folder / "sentinel.conf"
    config.write_text("\n".join(lines) + "\n")
    return RedisServer(folder, program="redis-sentinel", config=config)
