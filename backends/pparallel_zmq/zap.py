"""Lets connections in: the only judge of who is on the other end of one."""

from __future__ import annotations

import logging
import os
import threading
import time

import zmq

from pparallel.runtime.resources import start_thread
from pparallel_zmq.keys import Keyring

logger = logging.getLogger(__name__)

PAUSE = 0.01  #: seconds after an answer that has failed

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
        self._thread = threading.Thread(target=self._run, name="pparallel-zap", daemon=True)
        try:
            self._socket.bind("inproc://zeromq.zap.01")
            start_thread(self._thread)
        except BaseException:
            self._socket.close()
            raise

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
