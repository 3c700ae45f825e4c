"""Our reducer, in four processes that share memory, on either collective."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pparallel
from benchmarks.all_reduce_training_parts import (
    MEMBERS,
    PRELOAD,
    Averager,
    Keeping,
    Trainer,
    network,
    optimizer,
    parameters,
)
from benchmarks.crews import Crew, crew
from benchmarks.members import meeting, transport_config
from pparallel.registry import default_registry
from pparallel.runtime.member import Member


def collectives() -> set[str]:
    """Return the collectives that are installed."""
    offers = default_registry().offers()
    return {
        each.name
        for each in offers
        if each.interface == "collective" and each.status == "available"
    }


@contextmanager
def averagers(collective: str, megabytes: int) -> Iterator[Crew]:
    """Give four members that make means."""
    with _members(collective, _averager, megabytes) as found:
        yield found


@contextmanager
def trainers(collective: str, overlap: bool, layers: int) -> Iterator[Crew]:
    """Give four members that train."""
    with _members(collective, _trainer, layers, overlap=overlap) as found:
        yield found


@contextmanager
def _members(collective: str, opened: Any, size: int, **options: object) -> Iterator[Crew]:
    names = tuple(f"trainer-{each}" for each in range(MEMBERS))
    config = transport_config("ipc")
    raw: dict[str, Any] = {
        "members": list(names),
        "launcher": {"backend": "process"},  # that is where the members live, whoever starts them
        "transport": config,
        "collective": {"backend": collective},
        "reducer": {"backend": "all_reduce", **options},
    }
    job = pparallel.RuntimeConfig(**raw)
    with meeting(config, names) as members:
        openings = [partial(opened, job, each, size) for each in members]
        with crew(openings, preload=PRELOAD) as found:
            yield found


@contextmanager
def _averager(job: pparallel.RuntimeConfig, member: Member, megabytes: int) -> Iterator[Averager]:
    with pparallel.build(job, member=member) as rt:
        model = parameters(megabytes)
        keeping = Keeping(list(model))
        rt.reducer.manage_model(model, keeping)
        rt.reducer.start()

        def average() -> list[Any]:
            rt.reducer.step(model)
            means, keeping.kept = keeping.kept, []
            return means

        yield Averager(member.rank, list(model), average)
        rt.reducer.stop()


@contextmanager
def _trainer(job: pparallel.RuntimeConfig, member: Member, layers: int) -> Iterator[Trainer]:
    with pparallel.build(job, member=member) as rt:
        model = network(layers)
        rt.reducer.manage_model(model, optimizer(model))
        rt.reducer.start()
        yield Trainer(
            member.rank,
            model,
            lambda: rt.reducer.step(model),
            list(model.parameters()),
            rt.collective.all_gather_object,
        )
        rt.reducer.stop()
