"""How the pool shows a host of workers that it may connect, and the host that it is the one.

The host sends a nonce. Who connects answers with what it wants, a nonce of its own and a
digest of all three under the key, and gets a digest back. Every message has a fixed length, and
nothing else is read before. The key is made for one host; it reaches that as an argument of its
actor, by Ray's own channels.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import selectors
import socket
from collections.abc import Callable
from functools import partial
from time import monotonic

from pparallel.errors import AuthenticationError
from pparallel.runtime.resources import is_exhausted

logger = logging.getLogger(__name__)

CONTROL, WORK = b"C", b"W"  #: what a connection is for

_NONCE = 32
_DIGEST = 32
_NAME = 16
_ANSWER = len(CONTROL) + _NAME + _NONCE + _DIGEST
_PATIENCE = 5.0  #: seconds that either side has
_PAUSE = 0.2  #: seconds for which nobody is admitted where a resource has run out
_MOST_PENDING = 64  #: connections that have not answered yet; the oldest makes room

Admit = Callable[[bytes, bytes, socket.socket], object]


def connect(address: tuple[str, int], key: bytes, kind: bytes, name: bytes) -> socket.socket:
    """Return a connection to the host at *address*.

    Args:
        address: where it listens.
        key: the key.
        kind: what the connection is for.
        name: 16 bytes that name the worker it is for.

    Raises:
        OSError: it cannot be reached, or does not answer in time.
        AuthenticationError: it does not have the key, or takes this side not to.
    """
    wish = kind + name
    sock = socket.create_connection(address, _PATIENCE)
    try:
        prepare(sock)
        theirs, ours = _read(sock, _NONCE), secrets.token_bytes(_NONCE)
        sock.sendall(wish + ours + _digest(key, b"pool", wish, theirs, ours))
        if not hmac.compare_digest(_read(sock, _DIGEST), _digest(key, b"worker", wish, ours)):
            raise AuthenticationError("the host of a pool's workers has another key")
    except BaseException:
        sock.close()
        raise
    return sock


def prepare(sock: socket.socket) -> None:
    """Have a connection send at once, and notice when the other machine is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class Door:
    """Admits those who have the key, without ever waiting for one.

    Args:
        host: where to listen.
        key: the key.
        selector: tells when somebody comes or answers; its data is what is to be called.
        admit: is given the kind, the name and the connection of each who has the key.
    """

    def __init__(
        self, host: str, key: bytes, selector: selectors.BaseSelector, admit: Admit
    ) -> None:
        self._key = key
        self._selector = selector
        self._admit = admit
        self._pending: dict[socket.socket, tuple[bytes, float]] = {}
        self._shut_until: float | None = None
        self._is_exhausted = False  # logged once
        self._listener = socket.create_server((host, 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        selector.register(self._listener, selectors.EVENT_READ, self._welcome)

    def close(self) -> None:
        """Listen no more."""
        for each in list(self._pending):
            self._dismiss(each)
        if self._shut_until is None:
            self._selector.unregister(self._listener)
        self._listener.close()

    def tidy(self) -> None:
        """Dismiss those who have not answered in time; listen again after a pause."""
        now = monotonic()
        if self._shut_until is not None and now >= self._shut_until:
            self._shut_until = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._welcome)
        for each, (_, since) in list(self._pending.items()):
            if now - since > _PATIENCE:
                self._dismiss(each)

    def _welcome(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if is_exhausted(error):
                self._pause(error)
            return  # else it has gone again
        self._is_exhausted = False
        if len(self._pending) >= _MOST_PENDING:
            self._dismiss(next(iter(self._pending)))
        sock.setblocking(False)
        prepare(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _ANSWER)  # half an answer is none
        nonce = secrets.token_bytes(_NONCE)
        self._pending[sock] = nonce, monotonic()
        self._selector.register(sock, selectors.EVENT_READ, partial(self._hear, sock))
        try:
            sock.send(nonce)
        except OSError:
            self._dismiss(sock)

    def _pause(self, error: OSError) -> None:
        """Listen no more for a moment: who has come stays in the queue, and would wake the host."""
        if not self._is_exhausted:
            logger.warning("no pool can be admitted for now: %s", error)
        self._is_exhausted = True
        self._shut_until = monotonic() + _PAUSE
        self._selector.unregister(self._listener)

    def _hear(self, sock: socket.socket) -> None:
        try:
            answer = sock.recv(_ANSWER, socket.MSG_PEEK)
        except OSError:
            answer = b""
        if answer and len(answer) < _ANSWER:
            return
        nonce, _ = self._pending[sock]
        wish, ours = answer[: 1 + _NAME], answer[1 + _NAME : -_DIGEST]
        digest = _digest(self._key, b"pool", wish, nonce, ours)
        if wish[:1] not in (CONTROL, WORK) or not hmac.compare_digest(answer[-_DIGEST:], digest):
            self._dismiss(sock)
            return
        del self._pending[sock]
        self._selector.unregister(sock)
        try:
            sock.recv(_ANSWER)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            sock.send(_digest(self._key, b"worker", wish, ours))
        except OSError:
            sock.close()
            return
        self._admit(wish[:1], wish[1:], sock)

    def _dismiss(self, sock: socket.socket) -> None:
        del self._pending[sock]
        self._selector.unregister(sock)
        sock.close()


def _digest(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), hashlib.sha256)


def _read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise AuthenticationError("the host of a pool's workers did not take its key")
        data += more
    return data
