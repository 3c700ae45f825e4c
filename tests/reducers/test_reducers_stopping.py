"""A member that only trains, in a thread, learns that the job ends."""

from __future__ import annotations

import threading

import pytest
import torch

import pparallel
from pparallel.errors import ClosedError
from pparallel.testing.patience import PATIENCE


@pytest.mark.parametrize("backend", ["local", "model_server", "all_reduce", "diloco"])
def test_a_thread_that_trains_ends_with_the_job(backend: str) -> None:
    ended: list[BaseException] = []
    trains = threading.Event()

    def train(rt: pparallel.Runtime) -> None:
        model = torch.nn.Linear(3, 1)
        reducer = rt.reducer
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1e-6))
        reducer.start()
        try:
            for step in range(10**7):
                if step == 3 and rt.rank == 0:
                    trains.set()
                elif step == 3:
                    assert trains.wait(PATIENCE)  # where no step waits for the other member's
                    raise ValueError("a bad batch")
                model(torch.ones(2, 3)).mean().backward()
                reducer.step(model)
        except BaseException as error:
            ended.append(error)
            raise

    with pytest.raises(ValueError, match="a bad batch"):
        pparallel.launch({"members": 2, "reducer": {"backend": backend}}, train)
    assert not any(each.name.startswith("member-") for each in threading.enumerate())
    assert len(ended) == 2
    assert any(isinstance(each, ClosedError) for each in ended)
