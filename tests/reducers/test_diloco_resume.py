"""The reducer ``diloco``: training that is saved, and goes on in another job."""

from __future__ import annotations

import copy
import io
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from reducer_models import begun, launch, numbers
from torch import nn

from pparallel_reducers import DilocoReducerConfig

if TYPE_CHECKING:
    from pparallel.builder import Runtime

ROUND, BATCHES = 3, 12  #: steps in a round, and in all
SAVED = 6  #: steps before the checkpoint

OPTIMIZERS: dict[str, Any] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}
COMPRESSIONS: dict[str, Any] = {
    "none": None,
    "topk": {"kind": "topk", "ratio": 0.1},
    "powersgd": {"kind": "powersgd", "rank": 1},
}


def config(compression: Any = None, **options: Any) -> DilocoReducerConfig:
    raw = {"inner_steps": ROUND, "compression": compression, **options}
    return DilocoReducerConfig.model_validate({"backend": "diloco", **raw})


def network(dtype: torch.dtype, seed: int) -> nn.Sequential:
    """Return a network with a running mean and a mask; members begin with others."""
    random = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).to(dtype)
    model.register_buffer("mask", torch.full((2,), -math.inf))
    for each in model.parameters():
        each.data = torch.randn(each.shape, generator=random).to(dtype)
    return model


def parts(model: nn.Module, optimizer: str) -> tuple[torch.optim.Optimizer, Any]:
    made = OPTIMIZERS[optimizer](model.parameters())
    return made, torch.optim.lr_scheduler.CosineAnnealingLR(made, 20)


def train(rt: Runtime, model: nn.Module, steps: range) -> None:
    for step in steps:
        random = torch.Generator().manual_seed(100 * step + rt.rank)
        inputs = torch.randn(5, 6, generator=random).to(next(model.parameters()).dtype)
        model(inputs).square().mean().backward()
        rt.reducer.step(model)


def go_on(
    rt: Runtime, optimizer: str, dtype: torch.dtype, checkpoints: list[bytes] | None, end: str
) -> Any:
    """Train from the start or a checkpoint; return the state at the end, and one from between."""
    model = network(dtype, seed=rt.rank + (5 if checkpoints else 0))
    made = parts(model, optimizer)
    saved = b""
    if checkpoints is not None:
        state = torch.load(io.BytesIO(checkpoints[rt.rank]), weights_only=True)
        rt.reducer.load_state_dict(state.pop("reducer"))
        for part, each in zip((model, *made), state.values(), strict=True):
            part.load_state_dict(each)
    rt.reducer.manage_model(model, *made)
    rt.reducer.start()
    if checkpoints is None:
        train(rt, model, range(SAVED))
        if end == "stop":
            rt.reducer.stop()
        saved = checkpoint(rt, model, *made)
    if end == "go on" or checkpoints is not None:
        train(rt, model, range(SAVED, BATCHES))
        rt.reducer.stop()
    return [copy.deepcopy(each.state_dict()) for each in (model, *made)], saved


def checkpoint(rt: Runtime, *parts: Any) -> bytes:
    memory = io.BytesIO()
    names = ("model", "optimizer", "scheduler")
    states = {name: each.state_dict() for name, each in zip(names, parts, strict=True)}
    torch.save({**states, "reducer": rt.reducer.state_dict()}, memory)
    return memory.getvalue()


def trained_in_two_jobs(
    members: int, optimizer: str, reducer: DilocoReducerConfig, dtype: torch.dtype, end: str
) -> Any:
    first = launch(members, reducer, go_on, optimizer, dtype, None, end)
    checkpoints = [saved for _, saved in first]
    return launch(members, reducer, go_on, optimizer, dtype, checkpoints, "go on")


def check_same(one: Any, other: Any) -> None:
    for (first, _), (second, _) in zip(one, other, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("members", "optimizer", "compression"),
    [(2, "momentum", "none"), (3, "adamw", "topk"), (2, "adamw", "powersgd")],
)
def test_a_job_goes_on_with_the_same_numbers(
    members: int, optimizer: str, compression: str
) -> None:
    reducer = config(COMPRESSIONS[compression])
    whole = launch(members, reducer, go_on, optimizer, torch.float32, None, "go on")
    again = trained_in_two_jobs(members, optimizer, reducer, torch.float32, "exit")
    check_same(whole, again)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_job_goes_on_whatever_the_dtype(dtype: torch.dtype) -> None:
    reducer = config(coordinator="member-1", outer_lr=0.3)
    whole = launch(2, reducer, go_on, "momentum", dtype, None, "go on")
    check_same(whole, trained_in_two_jobs(2, "momentum", reducer, dtype, "exit"))


def test_a_job_goes_on_from_where_it_stopped() -> None:
    whole = launch(2, config(), go_on, "adamw", torch.float32, None, "go on")
    check_same(whole, trained_in_two_jobs(2, "adamw", config(), torch.float32, "stop"))


def save_at_any_time(rt: Runtime) -> None:
    reducer, model = rt.reducer, numbers()
    assert reducer.state_dict() == {"backend": "diloco"}
    reducer.load_state_dict({"backend": "diloco"})
    begun(rt, model)
    for step in range(4):
        model.weight.grad = torch.ones(3, 1, dtype=torch.float64)
        assert reducer.push(model)
        if step % 2:
            advice = r"middle of a round, 2 steps .* every 2 steps .*inner_steps"
        else:
            advice = "middle of a round, 1 steps after the last: save"
        with pytest.raises(RuntimeError, match=advice):
            reducer.state_dict()
        if reducer.pull(model):
            state = reducer.state_dict()
            assert state["steps"] == step + 1
            assert (state["outer"] is None) == (rt.name == "b")
            with pytest.raises(RuntimeError, match=r"comes before start\(\), or after stop"):
                reducer.load_state_dict(state)
    reducer.stop()
    state = reducer.state_dict()
    reducer.load_state_dict(state)
    assert reducer.state_dict() == state
    begun(rt, model)
    model.weight.grad = torch.ones(3, 1, dtype=torch.float64)
    reducer.push(model)
    reducer.stop()
    assert reducer.state_dict()["steps"] == 5


def test_state_is_saved_between_rounds() -> None:
    launch(["a", "b"], config(inner_steps=2), save_at_any_time)


def load_what_does_not_fit(rt: Runtime) -> None:
    reducer, model = rt.reducer, numbers()
    for other in ({"backend": "grad_server"}, {}):
        with pytest.raises(ValueError, match="and this is 'diloco': build the reducer"):
            reducer.load_state_dict(other)
    begun(rt, model)
    model.weight.grad = torch.ones(3, 1, dtype=torch.float64)
    reducer.stop()
    state: Any = reducer.state_dict()
    if rt.name == "b":
        return
    with pytest.raises(ValueError, match=r"'a' coordinates, .* Load what the coordinator has"):
        reducer.load_state_dict({**state, "outer": None})
    reducer.load_state_dict(state)
    nn.init.ones_(model.weight)
    with pytest.raises(
        ValueError, match=r"not those of the model: load the model's state_dict\(\)"
    ):
        reducer.start()
    for shape, match in ((2, r"of shape \(2, 1\)"), (3, "missing")):
        name = "weight" if shape == 2 else "scale"
        named = {name: torch.zeros(shape, 1, dtype=torch.float64)}
        reducer.load_state_dict({**state, "outer": {**state["outer"], "parameters": named}})
        with pytest.raises(ValueError, match=f"of another model: its outer parameter.*{match}"):
            reducer.start()
    message = "as expected"
    raise KeyError(message)


def test_state_that_does_not_fit_is_refused() -> None:
    with pytest.raises(KeyError, match="as expected"):
        launch(["a", "b"], config(), load_what_does_not_fit)


def load_without_compression(rt: Runtime) -> None:
    begun(rt, numbers())
    rt.reducer.stop()
    state: Any = rt.reducer.state_dict()
    if rt.name == "a":
        rt.reducer.load_state_dict(state)
        rt.reducer.start()
        return
    rt.reducer.load_state_dict({**state, "compression": None})
    with pytest.raises(ValueError, match="saved without compression, and this member has it with"):
        rt.reducer.start()
    message = "as expected"
    raise KeyError(message)


def test_state_without_what_compression_left_out_is_refused() -> None:
    with pytest.raises(KeyError, match="as expected"):
        launch(["a", "b"], config({"kind": "bf16"}), load_without_compression)
