"""A client at work: it does what its script says, and writes it down."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from pparallel.errors import ClosedError, PeerLostError
from pparallel.interfaces.ordered_server import OrderedServer
from pparallel.testing.linearizability.operation import Unknown
from pparallel.testing.linearizability.plan import Part
from pparallel.testing.linearizability.script import Script, Step
from pparallel.testing.linearizability.values import filled, made, told

Wrap = Callable[[OrderedServer], OrderedServer]  #: puts a fault around a server


class Writing(Protocol):
    """What is told of each operation before it begins, and after it has ended."""

    def begin(self, step: Step, start: float) -> None:
        """Tell that it begins."""

    def end(self, result: Any, start: float, end: float) -> None:
        """Tell how it ended."""


def perform(server: OrderedServer, part: Part, journal: Writing, patience: float) -> bool:
    """Do what *part* says.

    Args:
        server: what is used.
        part: the client's part.
        journal: what is told of each operation.
        patience: seconds that the server may be gone; 0: then the client is done.

    Returns:
        Whether the server was there to the end.
    """
    script, actor = Script(part), _Actor(server, part.nbytes)
    for _ in range(part.operations):
        step = script.next()
        journal.begin(step, time.monotonic())
        start = time.monotonic()  # again: what told of it took its time
        try:
            result = actor.do(step)
        except (ClosedError, PeerLostError):
            journal.end(Unknown(), start, time.monotonic())
            if not _comes_back(server, step.key, patience):
                return False
        else:
            journal.end(result, start, time.monotonic())
            script.saw(step, result)
        if pause := script.thinks():
            time.sleep(pause)
    return True


class _Actor:
    """Calls a server, and says what came as a history does."""

    def __init__(self, server: OrderedServer, nbytes: int) -> None:
        self._server = server
        self._into = filled(nbytes) if nbytes else None
        self._pulls = 0

    def do(self, step: Step) -> Any:
        key, name, arguments = step
        if name == "push":
            value, version, prev_version = arguments
            return self._server.push(key, made(value), version, prev_version)
        if name == "pull":
            return _found(self._pull(key, *arguments))
        result = getattr(self._server, name)(key, *arguments)
        return _found(result) if name == "wait" else result

    def _pull(self, key: Hashable, version: Hashable | None) -> Any:
        self._pulls += 1
        if self._into is None or self._pulls % 2:
            return self._server.pull(key, version)
        return self._server.pull(key, version, into=self._into)


def _found(found: tuple[Any, Any] | None) -> tuple[Hashable, Any] | None:
    return None if found is None else (told(found[0]), found[1])


def _comes_back(server: OrderedServer, key: Hashable, patience: float) -> bool:
    """Wait until the server answers again; nobody learns from a read that failed."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        try:
            server.versions(key)
        except (ClosedError, PeerLostError):
            time.sleep(0.005)
        else:
            return True
    return False
