"""Seeded runs of clients that use an ordered server while they are killed and paused.

:func:`explore` does a run for each seed, and checks its history::

    with ClientProcesses(SqliteOrderedServerConfig(path=path)) as clients:
        explore(clients, range(200))
"""

from __future__ import annotations

from pparallel.testing.linearizability.clients import Clients, Tally, explore
from pparallel.testing.linearizability.members import ClientMembers
from pparallel.testing.linearizability.processes import ClientProcesses
from pparallel.testing.linearizability.show import ServerProcess
from pparallel.testing.linearizability.threads import ClientThreads

__all__ = [
    "ClientMembers",
    "ClientProcesses",
    "ClientThreads",
    "Clients",
    "ServerProcess",
    "Tally",
    "explore",
]
