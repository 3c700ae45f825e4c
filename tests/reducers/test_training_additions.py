"""What is given to the optimizer, or the model, at a moment that the reducer cannot follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from reducer_models import one_weight, weight

import pparallel

if TYPE_CHECKING:
    from pparallel.builder import Runtime

SHARED: dict[str, dict[str, Any]] = {
    "all_reduce": {"backend": "all_reduce"},
    "overlap": {"backend": "all_reduce", "overlap": True},
    "grad_server": {"backend": "grad_server"},
    "trainers": {"backend": "grad_server", "dedicated": False},
    "model_server": {"backend": "model_server"},
    "diloco": {"backend": "diloco", "inner_steps": 2},
}
ALL = {"local": {"backend": "local"}, **SHARED}


def train(rt: Runtime) -> float:
    """Train a weight of the loss that the optimizer is given in the middle of the run."""
    model, factor = one_weight(), torch.nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if rt.reducer.manages:
        rt.reducer.manage_model(model, optimizer)
    rt.reducer.start()
    for step in range(4 if rt.reducer.trains else 0):
        if step == 2 and rt.reducer.manages:
            optimizer.add_param_group({"params": [factor]})
        (model(torch.ones(1, 1)).sum() + factor).backward()
        rt.reducer.step(model)
    if rt.reducer.manages and not rt.reducer.trains:
        optimizer.add_param_group({"params": [factor]})
    rt.reducer.stop()
    return factor.item()


@pytest.mark.parametrize("name", [each for each in SHARED if each != "grad_server"])
def test_a_parameter_that_only_the_optimizer_got_later_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a parameter of the model, and came"):
        pparallel.launch({"members": 2, "reducer": SHARED[name]}, train)


@pytest.mark.parametrize("name", ALL)
def test_one_member_trains_a_parameter_that_only_the_optimizer_got_later(name: str) -> None:
    reducer = dict(ALL[name])
    if name == "diloco":
        reducer |= {"outer_lr": 1.0, "outer_momentum": 0.0}
    # The gradients of the steps before it was the optimizer's have stayed, as in plain torch.
    assert pparallel.launch({"reducer": reducer}, train) == [1.0 - 0.5 * 3 - 0.5]


def begin_with_a_lazy_model(rt: Runtime) -> None:
    model = torch.nn.Sequential(torch.nn.LazyLinear(2))
    rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    with pytest.raises(ValueError, match=r"0\.weight.*pass data through"):
        rt.reducer.start()


@pytest.mark.parametrize("name", ALL)
def test_a_lazy_model_is_named_at_start(name: str) -> None:
    pparallel.launch({"reducer": ALL[name]}, begin_with_a_lazy_model)


def begin_once_more(rt: Runtime, sparse: bool) -> float:
    """One member is refused by start(), mends what it says and starts again."""
    model = one_weight()
    other = torch.optim.SparseAdam if sparse else torch.optim.SGD
    mended = rt.rank == 0 or not sparse
    kind = torch.optim.SGD if mended else other
    rt.reducer.manage_model(model, kind(model.parameters(), lr=1.0))
    if rt.rank == 1:
        if not sparse:
            next(iter(model.parameters())).requires_grad_(False)
        with pytest.raises(ValueError, match="SparseAdam" if sparse else "frozen"):
            rt.reducer.start()
        next(iter(model.parameters())).requires_grad_(True)
        rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    rt.reducer.start()
    next(iter(model.parameters())).grad = torch.ones(1, 1)
    rt.reducer.step(model)
    rt.reducer.stop()
    return weight(model)


def test_start_may_be_called_again_after_it_refused_the_optimizer() -> None:
    config = {"members": 2, "reducer": SHARED["all_reduce"]}
    assert pparallel.launch(config, begin_once_more, [True]) == [-1.0] * 2


def test_start_may_be_called_again_after_it_refused_the_model() -> None:
    config = {"members": 2, "reducer": SHARED["model_server"]}
    assert pparallel.launch(config, begin_once_more, [False]) == [-2.0] * 2


def restore_the_best(rt: Runtime) -> float:
    model = one_weight()
    rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    rt.reducer.start()
    best = {name: each.clone() for name, each in model.state_dict().items()}
    next(iter(model.parameters())).grad = torch.ones(1, 1)
    rt.reducer.step(model)
    model.load_state_dict(best)
    rt.reducer.stop()
    return weight(model)


@pytest.mark.parametrize("name", ALL)
def test_weights_that_one_member_loads_after_its_last_step_stay(name: str) -> None:
    assert pparallel.launch({"reducer": ALL[name]}, restore_the_best) == [0.0]
