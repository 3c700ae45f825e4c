"""What members do in the tests of the reducer ``all_reduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # what the first optimizer imports, here once for all members
from crew_programs import raised_by, wait_for_the_end
from joined_batch import Batch, loss_of, tensors, train_on_joined
from reducer_models import begun
from torch import Tensor, nn

from pparallel.builder import Runtime
from pparallel.interfaces.collective import Collective
from pparallel.interfaces.reducer import Counters
from pparallel_reducers.all_reduce.flats import Flat
from pparallel_reducers.all_reduce.roll import Roll

BATCH = 16  #: rows of each member's batch


def network() -> nn.Sequential:
    """Return a small network that is the same for all; in float64, for Adam enlarges errors."""
    random = torch.Generator().manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
    )
    for each in model.parameters():
        nn.init.uniform_(each, -0.3, 0.3, generator=random)
    return model.double()


def batch(rank: int, step: int) -> Batch:
    """Return inputs and labels, the same on every call."""
    random = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(BATCH, 8, generator=random, dtype=torch.float64)
    return inputs, torch.randint(4, (BATCH,), generator=random)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer with moments, which see every step."""
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train(rt: Runtime, steps: int) -> tuple[list[Tensor], Counters]:
    """Train on this member's batches; return the parameters and the counters."""
    model = network()
    if rt.rank:
        with torch.no_grad():
            next(model.parameters()).zero_()  # start() gives the first member's
    begun(rt, model, adam(model))
    for step in range(steps):
        loss_of(model, *batch(rt.rank, step)).backward()
        assert rt.reducer.step(model)
    rt.reducer.stop()
    return tensors(model), rt.reducer.counters()


def trained_alone(members: int, steps: int, weight: float = 1.0) -> list[Tensor]:
    """Return the parameters that one process makes of the members' batches, joined."""
    model = network()
    batches = ([batch(rank, step) for rank in range(members)] for step in range(steps))
    return train_on_joined(model, adam(model), batches, weight)


def step_on(rt: Runtime, model: nn.Linear, value: float) -> bool:
    """Step on a gradient of that value."""
    model.weight.grad = torch.full((3, 1), value, dtype=torch.float64)
    return rt.reducer.step(model)


def be_killed_in_a_step(rt: Runtime, file: Path, where: str) -> Any:
    """Step without end; the last member touches *file*, in the fifth step, and stays there.

    Args:
        rt: this member's.
        file: made when the last member is where it is to be killed.
        where: that is ``before`` the step, where members say what they do (``roll``), or where they
            hand in gradients (``gradients``).

    Returns:
        What ended the training, how many steps were made, and what stop() raises.
    """
    model, steps = network(), 0

    def stay(*_: Any, **__: Any) -> None:
        file.touch()
        wait_for_the_end(rt)

    def be_about_to_stay() -> None:
        if where == "before":
            stay()
        elif where == "roll":
            Roll.call = stay  # type: ignore[assignment, method-assign]
        else:
            Flat.begin = stay  # type: ignore[method-assign]
            Collective.all_reduce_coalesced = stay  # type: ignore[method-assign]

    def run() -> None:
        nonlocal steps
        while True:
            if rt.rank == 2 and steps == 4:
                be_about_to_stay()
            loss_of(model, *batch(rt.rank, steps)).backward()
            rt.reducer.step(model)
            steps += 1

    begun(rt, model)
    return raised_by(run), steps, raised_by(rt.reducer.stop)
