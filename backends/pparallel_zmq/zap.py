"""Lets connections in: the only judge of who is on the other end of one."""

from __future__ import annotations

import logging
import os
import resource
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any

import zmq

from pparallel.runtime.resources import start_thread
from pparallel_zmq.keys import Keyring

logger = logging.getLogger(__name__)

PAUSE = 0.01  #: seconds after an answer that has failed

STRANGERS = 256  #: connections that have proven nothing, at the most
SELDOM = 10.0  #: seconds between two warnings

_EVENT = struct.Struct("=hi")

_LOCAL = "localhost:"  #: and uid:gid:pid, is how libzmq tells of the peer at a Unix socket


class Gatekeeper:
    """Answers libzmq's questions of who may connect (ZAP, RFC 27), in a thread of its own.

    Without one CURVE admits whoever knows the server's public key. What it answers as the user's
    id is attached by libzmq to every message of that connection.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keyring: Keyring) -> None:
        self._keyring = keyring
        self._socket = context.socket(zmq.ROUTER)  # one answer that fails holds up no other
        self._socket.linger = 0
        self._socket.bind("inproc://zeromq.zap.01")
        self._thread = threading.Thread(target=self._run, name="pparallel-zap", daemon=True)
        start_thread(self._thread)

    def join(self) -> None:
        """Wait for the thread, which ends when its context does."""
        self._thread.join()

    def _run(self) -> None:
        with self._socket:
            try:
                while True:
                    self._answer_next()
            except zmq.ContextTerminated:
                return

    def _answer_next(self) -> None:
        try:
            sender, empty, *request = self._socket.recv_multipart()
            self._socket.send_multipart([sender, empty, *self._answer(request)])
        except zmq.ContextTerminated:
            raise
        except Exception:  # the peer tries again, and others are not to wait
            logger.exception("A peer was not let in")
            time.sleep(PAUSE)

    def _answer(self, request: list[bytes]) -> list[bytes]:
        name = self._judge(*request[3:4], *request[5:]) if len(request) >= 6 else None
        version, number = request[:2]
        if name is None:
            logger.info("A peer that could not prove who it is was refused")
            answer = [b"400", b"not a member of this job", b"", b""]
        else:
            answer = [b"200", b"OK", name.encode(), b""]
        return [version, number, *answer]

    def _judge(self, address: bytes, mechanism: bytes, *credentials: bytes) -> str | None:
        """Return the name of the member that these credentials are of."""
        if mechanism == b"CURVE" and len(credentials) == 1:
            return self._keyring.owner(credentials[0])
        if mechanism == b"PLAIN" and len(credentials) == 2 and _is_this_user(address.decode()):
            name = credentials[0].decode(errors="replace")
            return name if self._keyring.admits(name, credentials[1]) else None
        return None


def _is_this_user(address: str) -> bool:
    return address.startswith(f"{_LOCAL}{os.geteuid()}:")


class Strangers:
    """Closes connections to a TCP port that have proven nothing: the oldest, where there are many.

    libzmq accepts in a thread of its own, without a limit, and burns a core once no descriptor is
    left (``tcp_listener.cpp``: the pending connection wakes it again at once). A connection is a
    member's from its first message on, which tells its descriptor. A handshake takes milliseconds:
    a member that comes is not among the oldest for as long.
    """

    #: What is to be told.
    EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED

    def __init__(self, monitor: zmq.Socket[bytes]) -> None:
        self.monitor = monitor
        self.fd = int(monitor.getsockopt(zmq.FD))
        self._asked: list[tuple[Any, int]] = [(monitor, int(zmq.POLLIN))]
        self._unproven: dict[int, int] = {}  # inode of the socket, by descriptor, in order
        self._most = min(STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._told = -SELDOM

    def __len__(self) -> int:
        return len(self._unproven)

    def proven(self, descriptor: int) -> None:
        """Keep a connection: it is a member's."""
        self._unproven.pop(descriptor, None)

    def drain(self, signalled: bool) -> bool:
        """Handle what has become of connections."""
        if not (signalled or zmq.zmq_poll(self._asked, 0)):
            return False
        with suppress(zmq.Again):
            while not self.monitor.closed:
                event, descriptor = _EVENT.unpack(self.monitor.recv_multipart(zmq.NOBLOCK)[0])
                self._unproven.pop(descriptor, None)
                if event == zmq.EVENT_ACCEPTED:
                    with suppress(OSError):  # it is closed already
                        self._unproven[descriptor] = os.fstat(descriptor).st_ino
        while len(self._unproven) > self._most:
            self._shut(next(iter(self._unproven)))
        return False

    def tick(self, now: float) -> float | None:
        """Nothing has a time here: libzmq ends a handshake that takes long."""
        return None

    def end(self) -> None:
        """Close nothing: the server does."""

    def _shut(self, descriptor: int) -> None:
        inode = self._unproven.pop(descriptor)
        with suppress(OSError):
            if os.fstat(descriptor).st_ino == inode:  # the number is not another's by now
                other = socket.socket(fileno=descriptor)
                try:
                    other.shutdown(socket.SHUT_RDWR)  # libzmq closes it
                finally:
                    other.detach()
        if time.monotonic() - self._told >= SELDOM:
            self._told = time.monotonic()
            message = "Over %d connections have proven nothing: the oldest are closed"
            logger.warning(message, self._most)
