"""Connections to a TCP port that prove nothing, for tests."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from pparallel_zmq.address import Address

STRANGERS = 300
FREE = 50  #: descriptors that a member needs for itself

#: Holds connections that say nothing; tells how many the other end has left open, when asked.
HOLDER = """
import resource, select, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(int(sys.argv[3]))]
looking = select.poll()
for each in held:
    looking.register(each, select.POLLRDHUP)
while True:
    print(len(held) - len(looking.poll(0)), flush=True)
    if not sys.stdin.readline():
        break
"""


class Strangers:
    """Idle connections to a member, which another process holds: this one may not open so many."""

    def __init__(self, address: str) -> None:
        found = Address.parse(address)
        command = [sys.executable, "-c", HOLDER, found.host, str(found.port), str(STRANGERS)]
        self._process = psutil.Popen(command, stdin=-1, stdout=-1)
        self._first: int | None = self._next()

    def left(self) -> int:
        """Return how many are open still."""
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return self._next()

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()

    def _next(self) -> int:
        return int(self._process.stdout.readline())


@contextmanager
def few_descriptors() -> Iterator[None]:
    """Let this process open some 200 files more: fewer than there are strangers."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 200, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def strangers(address: str) -> Iterator[Strangers]:
    found = Strangers(address)
    try:
        yield found
    finally:
        found.end()


def has_room() -> bool:
    """Return whether this process can open some files."""
    with ExitStack() as stack:
        try:
            for _ in range(FREE):
                stack.enter_context(Path("/dev/null").open("rb"))
        except OSError:
            return False
    return True
