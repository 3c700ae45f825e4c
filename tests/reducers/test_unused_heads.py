"""A head that a batch does not use: the refusal names the zero term, which is as in plain torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pparallel

ADVICE = r"loss \+ 0 \* sum\(p\.sum\(\) for p in head\.parameters\(\)\)"
STEPS = 5

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
}


def heads() -> nn.ModuleList:
    generator = torch.Generator().manual_seed(3)
    model = nn.ModuleList(nn.Linear(2, 1) for _ in range(2))
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(torch.rand(each.shape, generator=generator))
    return model


def loss(model: nn.ModuleList, used: int, *, zero: bool) -> Tensor:
    found: Tensor = model[used](torch.ones(3, 2)).square().mean()
    return found + 0 * sum(p.sum() for p in model[1 - used].parameters()) if zero else found


def plain(optimizer: str, *, zero: bool) -> list[Tensor]:
    model = heads()
    steps = OPTIMIZERS[optimizer](model.parameters())
    for step in range(STEPS):
        steps.zero_grad()
        loss(model, step % 2, zero=zero).backward()
        steps.step()
    return [each.detach() for each in model.parameters()]


@pytest.mark.parametrize("backend", ["local", "all_reduce", "grad_server", "model_server"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_refused_step_is_made_with_the_zero_term(backend: str, optimizer: str) -> None:
    model = heads()
    with pparallel.build({"reducer": {"backend": backend}}) as rt:
        rt.reducer.manage_model(model, OPTIMIZERS[optimizer](model.parameters()))
        rt.reducer.start()
        for step in range(STEPS):
            before = copy.deepcopy(model.state_dict())
            loss(model, step % 2, zero=False).backward()
            with pytest.raises(ValueError, match=f"no gradient.*{ADVICE}"):
                rt.reducer.step(model)
            for name, each in model.state_dict().items():
                assert torch.equal(each, before[name])
            model.zero_grad()
            loss(model, step % 2, zero=True).backward()
            rt.reducer.step(model)
        rt.reducer.stop()
    found = list(model.parameters())
    torch.testing.assert_close(found, [nn.Parameter(each) for each in plain(optimizer, zero=True)])
    same = all(map(torch.equal, plain(optimizer, zero=True), plain(optimizer, zero=False)))
    assert same == (optimizer == "sgd"), "the documentation says which optimizers skip no step"


def _in_turn(rt: pparallel.Runtime) -> str:
    model = heads()
    rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=0.1))
    rt.reducer.start()
    loss(model, 0, zero=rt.rank == 0).backward()
    with pytest.raises(ValueError, match=ADVICE) as caught:
        rt.reducer.step(model)
    model.zero_grad()
    loss(model, rt.rank, zero=True).backward()
    rt.reducer.step(model)
    rt.reducer.stop()
    return str(caught.value)


def test_the_refusal_in_the_other_members_names_the_zero_term() -> None:
    config = {"members": ["a", "b"], "reducer": {"backend": "all_reduce"}}
    mine, its_own = pparallel.launch(config, _in_turn)
    assert mine.startswith("parameter '1.weight' of member 'b' has no gradient: in each step")
    assert its_own.startswith("parameter '1.weight' has no gradient: call backward()")
