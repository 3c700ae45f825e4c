"""A process that holds shared memory and does with it what a test tells it to.

Run as ``python shm_peer.py SOCKET ARENA...``: the descriptors of a socket and of arenas. Commands
are lines of Python on the socket, in a namespace of their own; each is answered with what the
line left in ``answer``.
"""

from __future__ import annotations

import array
import os
import pickle
import socket
import sys
from collections.abc import Sequence
from typing import Any

from pparallel.runtime.shm import Arena, Parcel, Parcels

LONGEST = 1 << 16


def send(channel: socket.socket, message: object, fds: Sequence[int] = ()) -> None:
    data = pickle.dumps(message)
    if fds:
        socket.send_fds(channel, [data], list(fds))
    else:
        channel.sendall(data)


def receive(channel: socket.socket) -> tuple[Any, list[int]]:
    data, fds, flags, _ = socket.recv_fds(channel, LONGEST, 8)
    if not data:
        raise EOFError
    assert not flags & socket.MSG_TRUNC
    return pickle.loads(data), list(fds)


def answer(channel: socket.socket, parcel: Parcel) -> None:
    """Send a parcel as the answer."""
    send(channel, parcel.head(), parcel.fds)
    for each in parcel.fds:
        os.close(each)


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    arenas = []
    for each in map(int, sys.argv[2:]):
        arenas.append(Arena.attach(each))
        os.close(each)
    own = Arena.create("peer")
    known: dict[str, Any] = {
        "arenas": arenas,
        "own": own,
        "parcels": Parcels(own, dict(enumerate(arenas))),
        "held": [],
        "reply": lambda parcel: answer(channel, parcel),
        "os": os,
        "array": array,
    }
    send(channel, os.getpid(), [own.fd])
    while True:
        try:
            (line, values), fds = receive(channel)
        except EOFError:
            return
        known.update(values, fds=fds, answer=None)
        exec(line, known)
        if known["answer"] is not known:
            send(channel, known["answer"])


if __name__ == "__main__":
    main()
