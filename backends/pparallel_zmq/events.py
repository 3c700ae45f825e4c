"""What ZeroMQ tells of a connection."""

from __future__ import annotations

import struct
from typing import Protocol

import zmq

from pparallel_zmq.sockets import Socket

_EVENT = struct.Struct("=hi")


class Told(Protocol):
    """Hears what becomes of its connection."""

    def happened(self, event: int, value: int) -> None:
        """Take note of it."""


class Events:
    """Tells a link what becomes of its connection."""

    def __init__(self, link: Told, monitor: Socket) -> None:
        self._link, self._monitor = link, monitor
        self.fd = int(monitor.getsockopt(zmq.FD))

    def drain(self, signalled: bool) -> bool:
        """Handle what has happened."""
        try:
            while not self._monitor.closed:
                event, value = _EVENT.unpack(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
                self._link.happened(event, value)
        except zmq.Again:
            pass
        return False

    def tick(self, now: float) -> float | None:
        """Nothing has a time here."""
        return None

    def end(self) -> None:
        """Close nothing: the link does."""
