"""Our gradient server, on a member that feeds no batches, as the four that do use it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pparallel
from benchmarks.away import started
from benchmarks.crews import Crew, crew
from benchmarks.gradients_parts import MEMBERS, PRELOAD, Trainer, model, optimizer
from benchmarks.members import meeting, transport_config
from pparallel.runtime.member import Member

_SERVER = "server"
# Counted at each level: the secondary sums so many gradients, and the primary so many such sums.
_BATCH = 2


@contextmanager
def grad_server(megabytes: int) -> Iterator[Crew]:
    """Give four members that train."""
    names = (_SERVER, *(f"trainer-{each}" for each in range(MEMBERS)))
    config = transport_config("ipc")
    raw: dict[str, Any] = {
        "members": list(names),
        "transport": config,
        "ordered_server": {"backend": "hosted", "host": _SERVER},
        "reducer": {
            "backend": "grad_server",
            "primary": _SERVER,
            "reduce_batch_size": _BATCH,
            "max_staleness": 0,  # in lockstep: a pull waits for the step on what was pushed
        },
    }
    job = pparallel.RuntimeConfig(**raw)
    with meeting(config, names) as (server, *trainers), ExitStack() as stack:
        payload = pickle.dumps((job, server, megabytes))
        stack.enter_context(started("benchmarks.gradients_ours:_serve", payload, preload=PRELOAD))
        opened = [partial(_trainer, job, each, megabytes) for each in trainers]
        yield stack.enter_context(crew(opened, preload=PRELOAD))


def _serve(payload: bytes, _: Sequence[int]) -> None:
    """Be the member that steps the optimizer, until the others stop."""
    job, member, megabytes = pickle.loads(payload)
    with pparallel.build(job, member=member) as rt:
        managed = model(megabytes, gradients=False)
        rt.reducer.manage_model(managed, optimizer(managed))
        rt.reducer.start()
        rt.reducer.stop()


@contextmanager
def _trainer(job: pparallel.RuntimeConfig, member: Member, megabytes: int) -> Iterator[Trainer]:
    with pparallel.build(job, member=member) as rt:
        reducer, trained = rt.reducer, model(megabytes)
        reducer.start()
        reducer.pull(trained)

        def train() -> None:
            reducer.push(trained)
            if not reducer.pull(trained):
                raise RuntimeError("there are no new parameters")

        yield Trainer(member.rank - 1, trained, train)
        reducer.stop()
