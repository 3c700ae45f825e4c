"""What workers log and warn of, and what comes of it here."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from typing_extensions import override

from pparallel.runtime.pools import forwarding

PROLOGUE = """\
import logging, os, socket, sys, threading, warnings
from pparallel.runtime.pools import forwarding
channel = socket.socket(fileno=int(sys.argv[1]))
def send(message):
    channel.send(message)
    return True
forwarder = forwarding.install(bytes.fromhex(sys.argv[2]), "worker-0", send)
"""


class Kept(logging.Handler):
    """Keeps the records that reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def texts(self) -> list[str]:
        return [each.getMessage() for each in self.records]


class Channel:
    """Takes messages while it is open."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.open = True

    def send(self, message: bytes) -> bool:
        if self.open:
            self.messages.append(message)
        return self.open


@contextmanager
def attached(handler: logging.Handler, name: str = "", level: int = 0) -> Iterator[logging.Logger]:
    """Give logger *name* the handler and the level."""
    target = logging.getLogger(name)
    before = target.level
    target.addHandler(handler)
    target.setLevel(level or before)
    try:
        yield target
    finally:
        target.removeHandler(handler)
        target.setLevel(before)


def messages_of(worker: str, *, stderr: str = "") -> list[bytes]:
    """Run the source of a worker in a process of its own; return what it sends."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", PROLOGUE + worker]
    command += [str(its.fileno()), forwarding.settings().hex()]
    pipe = subprocess.PIPE
    with (
        ours,
        subprocess.Popen(command, pass_fds=[its.fileno()], stderr=pipe, text=True) as process,
    ):
        its.close()
        messages = [*iter(lambda: ours.recv(1 << 20), b"")]
        assert process.communicate()[1] == stderr
    assert process.returncode == 0
    return messages


def replayed(messages: list[bytes]) -> list[str]:
    return [forwarding.replay(each, "worker-0") for each in messages]
