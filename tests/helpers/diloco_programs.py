"""What members do in the tests of reducers in which one of them is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # what the first optimizer imports, here once for all members
from crew_programs import raised_by, wait_for_the_end

from pparallel.builder import Runtime
from pparallel.testing.patience import until


def step_with_one_that_dies(rt: Runtime, file: Path, steps: int) -> Any:
    """Make four steps; the last member makes *steps* and is then to be killed, as *file* says.

    Returns:
        The parameter, which each step of a member moves by its number, and the counters; or what
        was raised.
    """
    reducer, model = rt.reducer, torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()

    def train() -> None:
        for step in range(4):
            if rt.rank == 2 and step == 1:
                file.touch()
                if steps == 1:
                    wait_for_the_end(rt)
            if rt.rank != 2 and not step:
                until(file.with_name(f"{file.name} over").exists, "it is not killed")
            model.weight.grad = torch.full((1, 1), 1.0 + rt.rank, dtype=torch.float64)
            reducer.step(model)
        reducer.stop()

    return raised_by(train) or (model.weight.item(), list(reducer.counters()))
