"""The actor that Ray places: it starts a rank's process, passes on what it says, sees it end."""

from __future__ import annotations

import os
import queue
import select
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

import ray

from pparallel.runtime import processes
from pparallel.runtime.processes import Process
from pparallel_ray.launcher import messages
from pparallel_ray.launcher.messages import ENDED, Surroundings

_RANK = "pparallel_ray.launcher.rank"
_WAITING = 64  #: messages that wait to be fetched; then the rank waits
_AT_ONCE = 4 << 20  #: bytes from which on no more messages go with the others


class Supervisor:
    """Looks after the process of one rank. Ray calls its methods in several threads at once."""

    def __init__(self) -> None:
        self._said: queue.Queue[bytes] = queue.Queue(_WAITING)
        self._telling = threading.Lock()
        self._process: Process | None = None
        self._connection: Connection | None = None
        self._is_told = threading.Event()  # what to run: nothing else may be said before
        self._is_over = False

    def arrive(self, surroundings: tuple[object, ...]) -> tuple[str, str]:
        """Take over what is the launching process's; return the machine: its id and address."""
        directory, path, argv = Surroundings(*surroundings)  # type: ignore[arg-type]
        if directory:
            with suppress(OSError):  # there is no such folder on this machine
                os.chdir(directory)
        sys.path[:] = [*path, *(each for each in sys.path if each not in path)]
        sys.argv[:] = argv
        node: str = ray.get_runtime_context().get_node_id()
        return node, ray.util.get_node_ip_address()

    def begin(
        self, start: bytes, name: str, environment: Mapping[str, str], call: Sequence[bytes]
    ) -> int:
        """Start the rank, and return the number of its process."""
        here, there = socket.socketpair()
        with there:
            try:
                self._process = processes.start(
                    f"{_RANK}:main",
                    start,
                    [there.fileno()],
                    method="spawn",
                    name=name,
                    environment={**processes.child_environment(), **environment},
                )
            except BaseException:
                here.close()
                raise
        self._connection = Connection(here.detach())
        threading.Thread(
            target=self._accompany, args=(self._process, self._connection, call), daemon=True
        ).start()
        return self._process.pid

    def listen(self) -> list[bytes]:
        """Wait until there is news, and return it."""
        found = [self._said.get()]
        while sum(map(len, found)) < _AT_ONCE:
            try:
                found.append(self._said.get_nowait())
            except queue.Empty:
                break
        return found

    def tell(self, message: bytes) -> None:
        """Send the rank something."""
        if self._connection is None:
            return
        self._is_told.wait()
        with self._telling, suppress(OSError):  # it has ended
            if not self._is_over:
                self._connection.send_bytes(message)

    def signal(self, number: int) -> None:
        """Send its process a signal; nothing happens if it has ended."""
        if self._process is not None:
            self._process.signal(number)

    def _accompany(self, process: Process, connection: Connection, call: Sequence[bytes]) -> None:
        """Have the rank run *call*, and take in what it says until its process has ended."""
        with suppress(OSError):  # it has ended
            messages.send_buffers(connection, call)
        self._is_told.set()
        watch = select.poll()
        watch.register(connection.fileno(), select.POLLIN)
        watch.register(process.pidfd, select.POLLIN)
        while process.pidfd not in (ready := {number for number, _ in watch.poll()}):
            if ready and not self._take(connection):
                watch.unregister(connection.fileno())
        while connection.poll(0) and self._take(connection):
            pass
        end = process.ended(None)
        with self._telling:
            self._is_over = True
            connection.close()
        process.close()
        self._said.put(messages.write((ENDED, None if end is None else tuple(end))))

    def _take(self, connection: Connection) -> bool:
        """Take in one message; return False if there is none any more."""
        try:
            self._said.put(connection.recv_bytes())
        except (EOFError, OSError):
            return False
        return True
