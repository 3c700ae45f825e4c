"""The training loop of a case on a reducer, and in DistributedDataParallel, in the same members."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

import pparallel
from pparallel.testing.training.case import Case, Training
from pparallel.testing.training.cases import every
from pparallel.testing.training.outcome import Outcome, outcome_of
from pparallel.testing.training.program import Loop, Plan


def train_both_ways(
    rt: pparallel.Runtime, names: Iterable[str], meeting: Path
) -> dict[str, tuple[Outcome, Outcome]]:
    """Train in each of the cases *names* on the reducer and in DDP; return both outcomes."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rt.rank, world_size=rt.world_size
    )
    try:
        return {
            case.name: (train_on_reducer(rt, case), train_in_ddp(case, rt.rank))
            for case in every()
            if case.name in names
        }
    finally:
        torch.distributed.destroy_process_group()


def train_on_reducer(rt: pparallel.Runtime, case: Case) -> Outcome:
    return Loop(rt.reducer, Plan(case, 0, case.steps, {}), rt.rank).train()


def train_in_ddp(case: Case, rank: int) -> Outcome:
    training = Training(case, rank)
    parallel = DistributedDataParallel(training.model)
    training.model, training.accumulating = parallel, parallel.no_sync
    optimizer = training.optimizer
    assert optimizer is not None
    for step in range(case.steps):
        case.backward(training, step)
        case.plain_step(training, optimizer)
        optimizer.zero_grad()
    return outcome_of(training)
