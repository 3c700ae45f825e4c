"""A network between client and server that fails on purpose."""

from __future__ import annotations

import random
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from redis_servers import PASSWORD


class Proxy:
    """Passes bytes on, and cuts connections.

    Attributes:
        cuts: how many it has cut.
        marker: the next request with these bytes in it is kept for :meth:`deliver`.
        late: what is kept, each with the connection to the server.
        unanswered: where a request has these bytes in it, nothing more comes back over its
            connection, which stays, but for so many bytes:
        crumbs: of the answer.
        still: how many connections there are of this kind.
    """

    def __init__(self, server: Path, seed: int | None = None) -> None:
        self._server = server
        self._random = None if seed is None else random.Random(seed)
        self._selector = selectors.DefaultSelector()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._alarm, self._rings = socket.socketpair()
        self._selector.register(self._rings, selectors.EVENT_READ)
        self._other: dict[socket.socket, socket.socket] = {}
        self._left: dict[socket.socket, int] = {}
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self.cuts = 0
        self.marker = b""
        self.late: list[tuple[socket.socket, bytes]] = []
        self.unanswered = b""
        self.crumbs = 0
        self._still: dict[socket.socket, int] = {}

    @property
    def url(self) -> str:
        port = self._listening.getsockname()[1]
        return f"redis://:{PASSWORD}@127.0.0.1:{port}"

    @property
    def still(self) -> int:
        return sum(not left for left in self._still.copy().values())

    def start(self) -> None:
        self._thread.start()

    def deliver(self) -> None:
        """Pass on what came too late, and wait for the server to have read it."""
        for upstream, request in self.late:
            upstream.sendall(request)
            upstream.shutdown(socket.SHUT_WR)
            while upstream.recv(4096):
                pass
            upstream.close()
        self.late.clear()

    def close(self) -> None:
        self._alarm.send(b"!")
        self._thread.join()
        for each in (self._listening, self._alarm, self._rings, *self._other):
            each.close()
        for upstream, _ in self.late:
            upstream.close()
        self._selector.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                ready: Any = key.fileobj
                if ready is self._rings:
                    return
                if ready is self._listening:
                    self._accept()
                elif ready in self._other:
                    self._pass_on(ready)

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        upstream = socket.socket(socket.AF_UNIX)
        try:
            upstream.connect(str(self._server))
        except OSError:
            client.close()
            upstream.close()
            return
        self._other[client], self._other[upstream] = upstream, client
        for each in (client, upstream):
            self._selector.register(each, selectors.EVENT_READ)
            if self._random is not None:
                # Mostly in the middle of some exchange; now and then in that of a large value.
                most = self._random.choice((300, 3000, 200_000))
                self._left[each] = self._random.randrange(60, most)

    def _pass_on(self, ready: socket.socket) -> None:
        other = self._other[ready]
        try:
            data = ready.recv(65536)
        except ConnectionError:
            data = b""
        if ready.family == socket.AF_INET and self.marker and self.marker in data:
            self._withhold(ready, other, data)
            return
        if ready.family == socket.AF_INET and self.unanswered and self.unanswered in data:
            self._still[other] = self.crumbs
        elif ready in self._still:
            self._stand_still(ready, other, data)
            return
        left = self._left.get(ready, len(data))
        with suppress(ConnectionError):
            other.sendall(data[:left])
        if ready in self._left:
            self._left[ready] -= len(data)
        if not data or len(data) > left:
            self.cuts += bool(data)
            self._cut(ready, other)

    def _stand_still(self, server: socket.socket, client: socket.socket, data: bytes) -> None:
        """Pass on what little is to be passed on; without data, one end is closed."""
        if not data:
            self._cut(server, client)
            return
        crumbs = data[: self._still[server]]
        client.sendall(crumbs)
        self._still[server] -= len(crumbs)

    def _withhold(self, client: socket.socket, upstream: socket.socket, data: bytes) -> None:
        """Keep a request for later, and have the client think that it was lost."""
        self.marker = b""
        self.late.append((upstream, data))
        self._forget(upstream)
        self._forget(client)
        client.close()
        self.cuts += 1

    def _cut(self, *ends: socket.socket) -> None:
        for each in ends:
            self._forget(each)
            each.close()

    def _forget(self, end: socket.socket) -> None:
        self._selector.unregister(end)
        del self._other[end]
        self._left.pop(end, None)
        self._still.pop(end, None)


@contextmanager
def proxy(server: Path, seed: int | None = None) -> Iterator[Proxy]:
    """Give a proxy; with *seed* it cuts each connection sooner or later."""
    found = Proxy(server, seed)
    found.start()
    try:
        yield found
    finally:
        found.close()
