"""An act with clients that are processes: who directs it has them play, and sees to the faults."""

from __future__ import annotations

import heapq
import itertools
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from pparallel.testing.linearizability.client_process import ClientProcess
from pparallel.testing.linearizability.journal import Journal
from pparallel.testing.linearizability.operation import Operation
from pparallel.testing.linearizability.plan import Act, Fault, Kind

Due = tuple[float, int, Callable[[], None]]  #: when, a number that orders equals, and what to do


class ServerProcess(Protocol):
    """A server in a process of its own, which a run may stop, and kill if it is durable."""

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""

    def start(self) -> None:
        """Start it again after it was killed, on what it left; return when it answers."""


class Show:
    """One act."""

    def __init__(
        self, cast: Sequence[ClientProcess], act: Act, server: ServerProcess | None, bound: float
    ) -> None:
        self._cast = cast
        self._act = act
        self._server = server
        self._bound = bound  #: seconds for which a client may be silent
        self._journals = {each: Journal(each.name) for each in cast}
        self._playing: set[ClientProcess] = set()
        self._faults = list(act.faults)
        self._due: list[Due] = []
        self._numbers = itertools.count()
        self.happened: list[Kind] = []

    def play(self, patience: float) -> list[Operation]:
        """Have all play their parts, and return what they did.

        Raises:
            AssertionError: one failed, or did not end within *patience* seconds.
        """
        end = time.monotonic() + patience
        with selectors.DefaultSelector() as selector:
            for client, part in zip(self._cast, self._act.parts, strict=True):
                client.play(part)
                self._playing.add(client)
                selector.register(client, selectors.EVENT_READ)
            while self._playing or self._due:
                assert time.monotonic() < end, self._stuck(patience)
                for key, _ in selector.select(self._until_due()):
                    client = key.fileobj  # type: ignore[assignment]
                    if not self._hear(client):
                        selector.unregister(client)
                self._do_what_is_due()
        return [each for journal in self._journals.values() for each in journal.operations()]

    def _hear(self, client: ClientProcess) -> bool:
        """Take what *client* tells; return whether it plays on."""
        message = client.told()
        if message is None:
            assert client.is_killed or client.is_lost, f"client {client.name} died by itself"
            self._playing.discard(client)
            return False
        what, *rest = message
        if what == "done":
            self._playing.discard(client)
            return False
        if what != "lost":
            getattr(self._journals[client], what)(*rest)
        if what == "begin":
            self._strike()
        return True

    def _strike(self) -> None:
        """Let happen what was to happen after so many operations."""
        begun = [self._journals[each].begun for each in self._cast]
        for fault in list(self._faults):
            alone = fault.kind in ("kill", "pause", "outlast")
            if (begun[fault.victim] if alone else sum(begun)) >= fault.after:
                self._faults.remove(fault)
                time.sleep(fault.delay)
                self._befall(fault)

    def _befall(self, fault: Fault) -> None:
        victim = self._cast[fault.victim]
        if fault.kind == "kill all":
            for each in self._cast:
                each.signal(signal.SIGKILL)
        elif fault.kind == "kill":
            victim.signal(signal.SIGKILL)
        elif fault.kind in ("pause", "outlast"):
            victim.signal(signal.SIGSTOP)
            lasting = fault.lasting if fault.kind == "pause" else 1.5 * self._bound
            self._later(lasting, lambda: victim.signal(signal.SIGCONT))
        elif self._server is not None and fault.kind == "pause server":
            self._server.signal(signal.SIGSTOP)
            self._later(fault.lasting, self._resume_server)
        elif self._server is not None:
            self._server.signal(signal.SIGKILL)
            self._later(fault.lasting, self._server.start)
        self.happened.append(fault.kind)

    def _resume_server(self) -> None:
        if self._server is not None:
            self._server.signal(signal.SIGCONT)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), act))

    def _until_due(self) -> float:
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else 1.0

    def _do_what_is_due(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()

    def _stuck(self, patience: float) -> str:
        under_way = [str(self._journals[each].operations()[-1:]) for each in self._playing]
        return f"these did not end within {patience} s: {'; '.join(under_way)}"
