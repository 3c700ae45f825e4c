"""Clients that are processes, each of which opens the server by itself."""

from __future__ import annotations

import itertools
import time
from abc import abstractmethod
from functools import partial

from typing_extensions import override

from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.testing.linearizability.client import by_itself
from pparallel.testing.linearizability.client_process import ClientProcess, modules
from pparallel.testing.linearizability.clients import Clients
from pparallel.testing.linearizability.operation import Operation
from pparallel.testing.linearizability.performing import Wrap
from pparallel.testing.linearizability.plan import Act, Plan
from pparallel.testing.linearizability.show import ServerProcess, Show

PATIENCE = 60.0  #: seconds after which what a client waits for will not come


class Processes(Clients):
    """Clients that are processes, started when they are needed."""

    def __init__(self, server: ServerProcess | None = None, bound: float = 0.0) -> None:
        super().__init__()
        self._server = server
        self._bound = bound
        self._clients: list[ClientProcess] = []

    @abstractmethod
    def cast(self, size: int) -> list[ClientProcess]:
        """Return *size* clients that have reached the server."""

    @override
    def run(self, plan: Plan) -> list[Operation]:
        return [each for act in plan.acts for each in self._perform(act)]

    def _perform(self, act: Act) -> list[Operation]:
        show = Show(self.cast(len(act.parts)), act, self._server, self._bound)
        try:
            return show.play(PATIENCE)
        finally:
            self.happened.update(show.happened)

    def _await_ready(self, clients: list[ClientProcess]) -> None:
        for each in clients:
            message = each.told()
            assert message == ("ready",), f"client {each.name} did not start: {message}"

    def _forget(self, clients: list[ClientProcess]) -> None:
        for each in clients:
            self._clients.remove(each)
            each.close()

    @override
    def close(self, *, gently: bool = True) -> None:
        try:
            if gently:
                self._finish([each for each in self._clients if each.is_there])
        finally:
            self._forget(list(self._clients))

    def _finish(self, clients: list[ClientProcess]) -> None:
        for each in clients:
            each.finish()
        end = time.monotonic() + PATIENCE
        for each in clients:
            assert each.ended(max(0.0, end - time.monotonic())), f"client {each.name} did not end"
            while each.told():  # raises if it failed
                continue


class ClientProcesses(Processes):
    """Clients of a server that is a file, or has a process of its own.

    All are killed and paused, now and then all at once: what they left is found by new ones.

    Args:
        config: what each of them opens.
        server: the server's process, to be paused and killed; ``None``: it has none.
        wrap: puts a fault around what a client opened.
    """

    def __init__(
        self,
        config: OrderedServerConfig,
        server: ServerProcess | None = None,
        wrap: Wrap | None = None,
    ) -> None:
        super().__init__(server)
        self.depth = config.version_depth
        self.possible = {"kill", "pause", "kill all"}
        if server is not None:
            self.possible |= {"pause server", "kill server"}
        self._opening = partial(by_itself, config, wrap)
        self._modules = modules(config)
        self._numbers = itertools.count()

    @override
    def cast(self, size: int) -> list[ClientProcess]:
        self._forget([each for each in self._clients if not each.is_there])
        added = [self._start() for _ in range(size - len(self._clients))]
        self._await_ready(added)
        return self._clients[:size]

    def _start(self) -> ClientProcess:
        patience = PATIENCE / 2 if self._server is not None else 0.0
        name = f"client-{next(self._numbers)}"
        client = ClientProcess(name, self._opening, patience, self._modules)
        self._clients.append(client)
        return client
