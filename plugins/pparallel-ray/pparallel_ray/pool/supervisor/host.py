"""The actor: lets pools in, and has one supervisor for each of their workers here."""

from __future__ import annotations

import os
import selectors
import socket

import ray

from pparallel_ray.pool.supervisor.supervisor import Supervisor
from pparallel_ray.pool.wire.admission import CONTROL, Door
from pparallel_ray.pool.wire.channel import Channel

_LOOK = 0.5  #: seconds between looks when no limit asks for more


class Host:
    """Looks after the workers that one program has on one machine.

    Args:
        key: without which nobody may connect.
    """

    def __init__(self, key: bytes) -> None:
        self._address: str = ray.util.get_node_ip_address()
        self._selector = selectors.DefaultSelector()
        self._door = Door(self._address, key, self._selector, self._admit)
        self._supervisors: dict[bytes, Supervisor] = {}

    def where(self) -> tuple[str, int]:
        """Return where it listens."""
        return self._address, self._door.port

    def run(self) -> None:
        """Serve for as long as Ray runs on this machine; an actor that is busy is not ended."""
        raylet = os.getppid()
        while os.getppid() == raylet:
            for key, _ in self._selector.select(self._patience()):
                if key.fileobj in self._selector.get_map():
                    key.data()
            self._door.tidy()
            for name, each in list(self._supervisors.items()):
                if each.is_over:
                    del self._supervisors[name]
                    each.close()
                else:
                    each.look()
        os._exit(1)  # the workers end with it

    def _patience(self) -> float:
        return min((each.due() for each in self._supervisors.values()), default=_LOOK)

    def _admit(self, wish: bytes, name: bytes, sock: socket.socket) -> None:
        supervisor = self._supervisors.get(name)
        if wish == CONTROL and supervisor is None:
            channel = Channel(sock, patient=True)
            self._supervisors[name] = Supervisor(channel, self._selector)
        elif wish != CONTROL and supervisor is not None:
            supervisor.start(sock)
        else:
            sock.close()
