"""Clients that are members of a job, of which the first keeps the values."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any, cast

from typing_extensions import override

from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.interfaces.transport import Meeting, Transport, TransportConfig
from pparallel.registry import default_registry
from pparallel.runtime.member import Member
from pparallel.testing.linearizability.client import as_member
from pparallel.testing.linearizability.client_process import ClientProcess, modules
from pparallel.testing.linearizability.performing import Wrap
from pparallel.testing.linearizability.processes import Processes

BOUND = 1.0  #: seconds for which a member may be silent
SIZE = 8  #: members of a job: those that are killed are not replaced


class ClientMembers(Processes):
    """Clients of a server that one member of their job hosts, each a process.

    All but the first are killed, all are paused, now and then for longer than a member may be
    silent: it is given up then, and if it is the first, which hosts, the job ends. Another job
    takes its place when too few are left.

    Args:
        config: the server's config; the first member must be its host.
        transport: what connects the members.
        wrap: puts a fault around each member's server.
    """

    def __init__(
        self, config: OrderedServerConfig, transport: TransportConfig, wrap: Wrap | None = None
    ) -> None:
        super().__init__(bound=BOUND)
        self.depth = config.version_depth
        self.possible = {"kill", "pause", "outlast"}
        self._config = config
        self._transport = transport.model_copy(update={"liveness_bound": BOUND})
        self._wrap = wrap
        self._modules = modules(config, transport)
        self._names = tuple(f"member-{rank}" for rank in range(SIZE))
        self._job = ExitStack()

    @override
    def cast(self, size: int) -> list[ClientProcess]:
        there = [each for each in self._clients if each.is_there]
        if len(there) < size or not self._clients[0].is_there:
            self.close()
            self._start()
        return [each for each in self._clients if each.is_there][:size]

    def _start(self) -> None:
        registry = default_registry()
        record = registry.find("transport", self._transport.backend)
        transport = cast("type[Transport]", registry.load(record))
        meeting = self._job.enter_context(transport.meeting(self._transport, self._names))
        self._clients = [self._member(rank, meeting) for rank in range(SIZE)]
        self._await_ready(self._clients)

    def _member(self, rank: int, meeting: Meeting) -> ClientProcess:
        name = self._names[rank]
        keys = meeting.keys.get(name, {})
        member = Member(name, rank, rank, SIZE, self._names, meeting.address, keys)
        raw: dict[str, Any] = {
            "members": list(self._names),
            "transport": self._transport,
            "ordered_server": self._config,
            "reducer": {"backend": "local"},
        }
        return ClientProcess(name, partial(as_member, raw, member, self._wrap), 0.0, self._modules)

    @override
    def close(self, *, gently: bool = True) -> None:
        with self._job:
            super().close(gently=gently)
