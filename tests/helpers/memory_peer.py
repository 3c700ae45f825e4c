"""A process that shares memory with a test, and does with it what the test says.

Run as ``python memory_peer.py SOCKET ARENA``. A command is Python and the values of
names in it; the answer is the value of ``answer`` then.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

from pparallel.runtime.connection import Connection
from pparallel.runtime.memory import Arena, Payload

PATIENCE = 60.0

AS_NOBODY = """
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
"""


def data(nbytes: int, start: int = 0) -> bytearray:
    """Return bytes that tell where they are."""
    turn = bytes((start + each) % 251 for each in range(251))
    return bytearray((turn * (nbytes // 251 + 1))[:nbytes])


class Peer:
    """The process, as the test has it.

    Attributes:
        payload: carries buffers to the process and back.
        own: the process's own arena, as the test has it.
        pid: of the process.
    """

    def __init__(self, arena: Arena) -> None:
        self.connection, there = Connection.pair()
        fds = (there.fileno(), arena.fd)
        command = [sys.executable, __file__, *map(str, fds)]
        self.process = subprocess.Popen(command, pass_fds=fds)
        there.close()
        self.pid = self.process.pid
        try:
            _, (fd,) = self.connection.receive(deadline=time.monotonic() + PATIENCE)
        except BaseException:
            self.connection.close()
            self.kill()
            raise
        self.own = Arena.attach(fd)
        os.close(fd)
        self.payload = Payload([arena, self.own], 0, self.pid)

    def do(self, command: str, **values: Any) -> Any:
        """Return what the process answers."""
        self.connection.send((command, values))
        done, answer = self.connection.receive(deadline=time.monotonic() + PATIENCE)[0]
        assert done, answer
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def close(self) -> None:
        """End it; harmless if it has ended."""
        self.connection.close()
        self.process.wait(PATIENCE)
        self.own.close()


def main() -> None:
    connection = Connection(socket.socket(fileno=int(sys.argv[1])))
    arena = Arena.attach(int(sys.argv[2]))
    own = Arena.create("peer")
    known: dict[str, Any] = {"arena": arena, "own": own, "os": os, "held": [], "data": data}
    known["payload"] = Payload([arena, own], 1, os.getppid())
    connection.send("ready", [own.fd])
    while True:
        try:
            (command, values), fds = connection.receive()
        except EOFError:
            return
        known.update(values, fds=fds, answer=None)
        try:
            exec(command, known)
        except Exception as error:  # noqa: BLE001 - the test fails
            connection.send((False, repr(error)))
        else:
            connection.send((True, known["answer"]))


if __name__ == "__main__":
    main()
