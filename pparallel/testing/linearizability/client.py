"""The process of a client: what it is told, and what it tells."""

from __future__ import annotations

import pickle
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pparallel
from pparallel.errors import ClosedError, PeerLostError
from pparallel.interfaces.ordered_server import OrderedServer, OrderedServerConfig
from pparallel.runtime.member import Member
from pparallel.testing.linearizability.performing import Wrap, perform
from pparallel.testing.linearizability.plan import Part
from pparallel.testing.linearizability.script import Step

LONGEST = 1 << 16  #: bytes of a message
Opening = Callable[[], AbstractContextManager[OrderedServer]]  #: reaches a server


@contextmanager
def by_itself(config: OrderedServerConfig, wrap: Wrap | None) -> Iterator[OrderedServer]:
    """Open a server in this process alone."""
    with pparallel.build(config) as server:
        yield wrap(server) if wrap else server


@contextmanager
def as_member(raw: dict[str, Any], member: Member, wrap: Wrap | None) -> Iterator[OrderedServer]:
    """Be a member of a job that has a server."""
    with pparallel.build(pparallel.RuntimeConfig(**raw), member=member) as rt:
        yield wrap(rt.ordered_server) if wrap else rt.ordered_server


class Wire:
    """Tells what this client does before it does it: by one message each, which comes whole."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def begin(self, step: Step, start: float) -> None:
        """Tell that a step begins."""
        self.tell("begin", step, start)

    def end(self, result: Any, start: float, end: float) -> None:
        """Tell how it ended."""
        self.tell("end", result, start, end)

    def tell(self, *message: object) -> None:
        """Send a message."""
        self._channel.send(pickle.dumps(message))

    def told(self) -> tuple[Any, ...] | None:
        """Wait for a message; ``None``: there will be no more."""
        message = self._channel.recv(LONGEST)
        return pickle.loads(message) if message else None


def run(payload: bytes, fds: Sequence[int]) -> None:
    """Be a client until it is told to end."""
    opening, patience = pickle.loads(payload)
    with socket.socket(fileno=fds[0]) as channel:
        wire = Wire(channel)
        try:
            with opening() as server:
                wire.tell("ready")
                _serve(server, wire, patience)
        except (ClosedError, PeerLostError) as error:
            wire.tell("lost", f"{type(error).__name__}: {error}")
        except BaseException:  # noqa: BLE001 - it is told
            wire.tell("failed", traceback.format_exc()[-LONGEST // 2 :])


def _serve(server: OrderedServer, wire: Wire, patience: float) -> None:
    while message := wire.told():
        part: Part = message[0]
        if not perform(server, part, wire, patience):
            what = "the server"
            raise ClosedError(what, "is gone")
        wire.tell("done")
