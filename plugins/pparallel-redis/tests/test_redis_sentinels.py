"""The master changes, and clients follow."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from redis_sentinels import SERVICE, Watched, watched
from redis_servers import held_port

import pparallel
from pparallel.errors import PeerLostError
from pparallel.interfaces.ordered_server import Found
from pparallel.testing.patience import PATIENCE, until
from pparallel_redis import RedisOrderedServerConfig, RedisSentinel


@pytest.fixture
def both() -> Iterator[Watched]:
    with watched() as found:
        yield found


def test_a_failover(both: Watched, namespace: str) -> None:
    """What replicas were waited for is there; waiters go on; another master takes the pushes."""
    with pytest.raises(PeerLostError, match="it knows no master of that name"):
        pparallel.build(both.watching("other", namespace, timeout=0.1)).open()
    config = both.config(namespace, min_replicas=1, timeout=PATIENCE, version_depth=2)
    with pparallel.build(config) as server:
        assert server.push("k", bytes(50_000), 1, None)
        assert server.push("k", "kept", 2, 1)
        found: list[Found | None] = []
        waiter = threading.Thread(target=lambda: found.append(server.wait("k", 2, PATIENCE)))
        waiter.start()
        before = both.master()
        both.servers[0].kill()
        until(lambda: both.master() != before, "no other server becomes the master")
        assert server.pull("k") == ("kept", 2)
        assert server.versions("k") == [1, 2]
        plain = both.config(namespace, timeout=PATIENCE)
        with pparallel.build(plain) as other:
            until(lambda: other.push("k", "new", 3, 2), "nothing is stored any more")
        waiter.join()
        assert found == [("new", 3)]
    impatient = both.config(namespace, min_replicas=1, timeout=0.4)
    with (
        pparallel.build(impatient) as server,
        pytest.raises(PeerLostError, match="only 0 of 1 replicas"),
    ):
        server.push("k", "alone", 4, 3)


def test_sentinels_that_do_not_know() -> None:
    with held_port() as one, held_port() as other:
        addresses = (f"127.0.0.1:{one}", f"127.0.0.1:{other}")
        sentinel = RedisSentinel(addresses=addresses, service=SERVICE)
        config = RedisOrderedServerConfig(sentinel=sentinel, timeout=0.1)
        with pytest.raises(PeerLostError) as caught:
            pparallel.build(config).open()
    said = str(caught.value)
    assert f"the sentinels' service '{SERVICE}'" in said
    assert all(f"{each}: Connection refused" in said for each in addresses)
