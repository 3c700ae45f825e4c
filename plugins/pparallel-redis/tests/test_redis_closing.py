"""Closing while the server stands still, at each step of what is said to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from redis_proxy import Proxy, proxy
from redis_servers import RedisServer

import pparallel
from pparallel.errors import ClosedError
from pparallel.interfaces.ordered_server import OrderedServer
from pparallel.testing.patience import PATIENCE, ends_within, until

FOR_EVER = 1e6  #: seconds that the server may be silent: nothing ends because they have passed

USES: dict[str, Callable[[OrderedServer], object]] = {
    "wait": lambda server: server.wait("k"),
    "pull": lambda server: server.pull("k"),
}


def ends_with_closing(server: OrderedServer, use: str, is_there: Callable[[], bool]) -> None:
    """Close *server* while it is used in another thread, once *is_there*."""
    ended: list[BaseException] = []

    def run() -> None:
        with pytest.raises(ClosedError) as caught:
            USES[use](server)
        ended.append(caught.value)

    user = threading.Thread(target=run, daemon=True)
    user.start()
    until(is_there, "nobody comes to where the server stands still")
    with ends_within(PATIENCE):
        server.close()
    user.join(PATIENCE)
    assert len(ended) == 1


def stop(network: Proxy, request: bytes, crumbs: int) -> None:
    network.unanswered, network.crumbs = request, crumbs


@pytest.mark.parametrize(
    ("use", "request_", "crumbs"),
    [
        pytest.param("wait", b"AUTH", 0, id="listener-greets"),
        pytest.param("wait", b"AUTH", 2, id="listener-greets-half-answered"),
        pytest.param("wait", b"SUBSCRIBE", 0, id="listener-subscribes"),
        pytest.param("wait", b"SUBSCRIBE", 3, id="listener-in-a-line"),
        pytest.param("wait", b"SUBSCRIBE", 12, id="listener-in-a-string"),
        pytest.param("pull", b"HMGET", 0, id="lane-reads"),
        pytest.param("pull", b"HMGET", 3, id="lane-in-a-line"),
    ],
)
def test_a_server_that_stands_still(
    redis_server: RedisServer, namespace: str, use: str, request_: bytes, crumbs: int
) -> None:
    with proxy(redis_server.socket) as network:
        server = pparallel.build(_patient(redis_server, namespace, network))
        server.open()
        stop(network, request_, crumbs)
        ends_with_closing(server, use, lambda: network.still == 1)


def test_a_lane_that_greets(redis_server: RedisServer, namespace: str) -> None:
    """Its connection was lost, and the new one is not answered."""
    with proxy(redis_server.socket) as network:
        server = pparallel.build(_patient(redis_server, namespace, network))
        server.open()
        stop(network, b"AUTH", 0)
        network.marker = b"HMGET"
        ends_with_closing(server, "pull", lambda: network.still == 1)


def test_a_name_that_is_not_found_out(
    redis_server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can wake who looks a name up: it is not waited for longer than for a server."""
    is_asked, may_go_on = threading.Event(), threading.Event()

    def connect(*given: Any) -> socket.socket:
        is_asked.set()
        assert may_go_on.wait(PATIENCE)
        return _connect(*given)

    with proxy(redis_server.socket) as network:
        server = pparallel.build(redis_server.config(namespace, url=network.url, timeout=0.2))
        server.open()
        monkeypatch.setattr(socket, "create_connection", connect)
        ends_with_closing(server, "wait", is_asked.is_set)
        left = _listeners()
        assert len(left) == 1
        may_go_on.set()
        left[0].join(PATIENCE)
        assert not _listeners(), "it ends by itself"


def _patient(server: RedisServer, namespace: str, network: Proxy) -> Any:
    return server.config(namespace, url=network.url, timeout=FOR_EVER, connect_timeout=FOR_EVER)


def _listeners() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "pparallel-redis-listener"]


_connect = socket.create_connection
