"""Connections of peers that have not proven who they are."""

from __future__ import annotations

import logging
import os
import resource
import socket as system
import time
from contextlib import suppress

import zmq

logger = logging.getLogger(__name__)

STRANGERS = 256  #: connections that have proven nothing, at the most
SELDOM = 10.0  #: seconds between two warnings of them
WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED  #: of bound sockets


class Strangers:
    """Closes connections that have proven nothing: the oldest, where there are many.

    libzmq accepts in a thread of its own, without a limit, and burns a core once no descriptor is
    left (``tcp_listener.cpp``: the pending connection wakes it again at once). A connection is a
    member's from its first message on, which shows its descriptor. A handshake takes milliseconds:
    a member that comes is not among the oldest for as long.
    """

    def __init__(self) -> None:
        self._unproven: dict[int, int] = {}  # inode of the socket, by descriptor, in order
        self._most = min(STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._warned = -SELDOM

    def proven(self, descriptor: int) -> None:
        """Keep a connection: it is a member's."""
        self._unproven.pop(descriptor, None)

    def happened(self, event: int, descriptor: int) -> None:
        """Count a connection that was accepted, or has ended."""
        self._unproven.pop(descriptor, None)
        if event == zmq.EVENT_ACCEPTED:
            with suppress(OSError):  # it is closed already
                self._unproven[descriptor] = os.fstat(descriptor).st_ino
        if len(self._unproven) > self._most:
            self._shut(next(iter(self._unproven)))

    def _shut(self, descriptor: int) -> None:
        inode = self._unproven.pop(descriptor)
        with suppress(OSError):
            if os.fstat(descriptor).st_ino == inode:  # the number is not another's by now
                other = system.socket(fileno=descriptor)
                try:
                    other.shutdown(system.SHUT_RDWR)  # libzmq closes it
                finally:
                    other.detach()
        if time.monotonic() - self._warned >= SELDOM:
            self._warned = time.monotonic()
            message = "Over %d connections have proven nothing: the oldest are closed"
            logger.warning(message, self._most)
