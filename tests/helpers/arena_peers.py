"""Processes that share an arena with the test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shm_peer import receive, send

from pparallel.runtime.shm import Arena, Parcel, Parcels
from pparallel.testing.patience import PATIENCE

HERE = Path(__file__).parent
KB, MB = 1 << 10, 1 << 20


def ramp(nbytes: int, start: int = 0) -> bytes:
    return (np.arange(start, start + nbytes) % 251).astype(np.uint8).tobytes()


class Peer:
    """A process that does what it is told, with arenas of this one; see ``shm_peer.py``."""

    def __init__(self, *arenas: Arena) -> None:
        self.channel, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(PATIENCE)
        numbers = [end.fileno(), *(os.dup(each.fd) for each in arenas)]
        command = [sys.executable, str(HERE / "shm_peer.py"), *map(str, numbers)]
        self.process = subprocess.Popen(command, pass_fds=numbers)
        for each in numbers[1:]:
            os.close(each)
        end.close()
        self.pid, (descriptor,) = receive(self.channel)
        self.own = Arena.attach(descriptor)
        os.close(descriptor)
        # As the peer sees it: its own arena comes after those that it was given.
        self.parcels = Parcels(arenas[0] if arenas else None, {len(arenas): self.own})

    def tell(self, line: str, parcel: Parcel | None = None, **values: Any) -> None:
        fds = []
        if parcel is not None:
            values["head"], fds = parcel.head(), parcel.fds
        send(self.channel, (line, values), fds)
        for each in fds:
            os.close(each)

    def do(self, line: str, parcel: Parcel | None = None, **values: Any) -> Any:
        self.tell(line, parcel, **values)
        return self.answer()[0]

    def answer(self) -> tuple[Any, list[int]]:
        return receive(self.channel)

    def back(self, parcel: Parcel, line: str) -> list[Any]:
        """Send a parcel, have it answered, and return what came."""
        self.tell(line, parcel)
        return self.parcels.unpack(*self.answer())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.channel.close()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
        self.own.close()


HOLD = "held += parcels.unpack(head, fds); answer = [bytes(each[:9]) for each in held]"
ECHO = """
buffers = parcels.unpack(head, fds)
parcel = parcels.pack(buffers, move=True)
del buffers
reply(parcel)
parcels.settle()
answer = globals()
"""
KEEP = """
held += parcels.unpack(head, fds)
reply(parcels.pack(held, move=True))
answer = globals()
"""


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(budget=512 * MB)
    yield made
    made.close()


@pytest.fixture
def peer(arena: Arena) -> Iterator[Peer]:
    made = Peer(arena)
    yield made
    made.close()


def blocks(arena: Arena) -> int:
    return arena.usage().blocks
