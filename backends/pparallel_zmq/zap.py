"""Lets connections in: the only judge of who is on the other end of one."""

from __future__ import annotations

import logging
import os
import threading

import zmq

from pparallel_zmq.keys import Keyring

logger = logging.getLogger(__name__)

_LOCAL = "localhost:"  #: and uid:gid:pid, is how libzmq tells of the peer at a Unix socket


class Gatekeeper:
    """Answers libzmq's questions of who may connect (ZAP, RFC 27), in a thread of its own.

    Without one CURVE admits whoever knows the server's public key. What it answers as the user's
    id is attached by libzmq to every message of that connection.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keyring: Keyring) -> None:
        self._keyring = keyring
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind("inproc://zeromq.zap.01")
        self._thread = threading.Thread(target=self._run, name="pparallel-zap", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, which ends when its context does."""
        self._thread.join()

    def _run(self) -> None:
        with self._socket:
            try:
                while True:
                    self._answer(self._socket.recv_multipart())
            except zmq.ContextTerminated:
                return

    def _answer(self, request: list[bytes]) -> None:
        name = self._judge(*request[3:4], *request[5:]) if len(request) >= 6 else None
        version, number = request[:2]
        if name is None:
            logger.info("A peer that could not prove who it is was refused")
            answer = [b"400", b"not a member of this job", b"", b""]
        else:
            answer = [b"200", b"OK", name.encode(), b""]
        self._socket.send_multipart([version, number, *answer])

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
