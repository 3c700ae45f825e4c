"""Our ordered server, hosted by a member of its own, as the other members of the job use it."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pparallel
from benchmarks.away import started
from benchmarks.crews import Crew, crew
from benchmarks.members import meeting, transport_config
from benchmarks.servers_parts import Store
from pparallel.runtime.member import Member

_HOST = "host"


@contextmanager
def hosted(clients: int) -> Iterator[Crew]:
    """Give so many members that each have a key of a server that one more member hosts."""
    names = (_HOST, *(f"client-{each}" for each in range(clients)))
    config = transport_config("ipc")
    raw: dict[str, Any] = {
        "members": list(names),
        "transport": config,
        "ordered_server": {"backend": "hosted", "host": _HOST},
    }
    job = pparallel.RuntimeConfig(**raw)
    with meeting(config, names) as (host, *others), ExitStack() as stack:
        stack.enter_context(started("benchmarks.servers_ours:_host", pickle.dumps((job, host))))
        yield stack.enter_context(crew([partial(_store, job, each) for each in others]))


def _host(payload: bytes, _: Sequence[int]) -> None:
    """Be the member that keeps the values, until the others leave."""
    job, member = pickle.loads(payload)
    with pparallel.build(job, member=member) as rt:
        rt.group().barrier()


@contextmanager
def _store(job: pparallel.RuntimeConfig, member: Member) -> Iterator[Store]:
    """Be a member that uses a key of its own."""
    with pparallel.build(job, member=member) as rt:
        server, key, versions = rt.ordered_server, member.name, itertools.count()

        def push(value: Any) -> None:
            version = next(versions)
            if not server.push(key, value, version, version - 1):
                raise RuntimeError(f"version {version} of {key!r} was refused")

        def pull(into: Any) -> Any:
            found = server.pull(key, into=into)
            return found and found[0]

        yield Store(push, pull)
        rt.group().barrier()
