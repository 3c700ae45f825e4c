"""What users' programs do beside the loop: own gradients, own steps, copies and leftovers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import preloads
import pytest
import torch
from reducer_models import begun, one_weight, weight
from torch import nn
from typing_extensions import override

import pparallel

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler

    from pparallel.builder import Runtime

AVERAGED = {"inner_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0}
SHARED: dict[str, dict[str, Any]] = {
    "grad_server": {"backend": "grad_server", "max_staleness": 0},
    "trainers": {"backend": "grad_server", "max_staleness": 0, "dedicated": False},
    "all_reduce": {"backend": "all_reduce"},
    "overlap": {"backend": "all_reduce", "overlap": True},
    "diloco": {"backend": "diloco", **AVERAGED},
    "model_server": {"backend": "model_server"},
}
ALL = {"local": {"backend": "local"}, **SHARED}
every_reducer = pytest.mark.parametrize("name", ALL)
shared_reducers = pytest.mark.parametrize("name", SHARED)


def launch(members: int, reducer: dict[str, Any], target: Callable[..., Any], *args: Any) -> Any:
    return pparallel.launch({"members": members, "reducer": reducer}, target, args)


def descend(model: nn.Module, lr: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def backward(model: nn.Module, factor: float = 1.0) -> None:
    """Leave a gradient of *factor*."""
    (factor * model(torch.ones(1, 1)).sum()).backward()


def gradient(model: nn.Module) -> float | None:
    (parameter,) = model.parameters()
    return None if parameter.grad is None else parameter.grad.item()


def warnings(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    found = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    return [each for each in found if text in each]


# -- gradients in memory of numpy -----------------------------------------------------------------


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(2))
        self.second = nn.Parameter(torch.zeros(2))


def give_one_array(rt: Runtime) -> tuple[list[float], list[float], list[float]]:
    """Make one array of numpy the gradient of two parameters, in each step."""
    model = begun(rt, Two())
    kept = np.full(2, rt.rank + 1.0, dtype=np.float32)
    for _ in range(3):
        model.first.grad = torch.from_numpy(kept)
        model.second.grad = torch.from_numpy(kept)
        rt.reducer.step(model)
    rt.reducer.stop()
    return model.first.tolist(), model.second.tolist(), kept.tolist()


def keep_momentum_in_numpy(rt: Runtime) -> float:
    model = begun(rt, one_weight())
    (parameter,) = model.parameters()
    velocity = np.zeros((1, 1), dtype=np.float32)
    for _ in range(3):
        velocity *= 0.5
        velocity += rt.rank
        parameter.grad = torch.from_numpy(velocity)
        rt.reducer.step(model)
    rt.reducer.stop()
    return weight(model)


LAUNCHERS: dict[str, dict[str, Any]] = {
    "thread": {"backend": "thread"},
    "process": {"backend": "process", "preload": preloads.MEMBERS},
}


@pytest.mark.parametrize(
    ("launcher", "overlap"), [("thread", False), ("thread", True), ("process", True)]
)
def test_gradients_in_memory_of_numpy_stay(launcher: str, overlap: bool) -> None:
    reducer = {"backend": "all_reduce", "overlap": overlap, "collective": {"backend": "shm"}}
    job = {"members": 2, "launcher": LAUNCHERS[launcher], "reducer": reducer}
    first, second = pparallel.launch(job, give_one_array)
    moved = [-4.5, -4.5]
    assert first == (moved, moved, [1.0, 1.0])
    assert second == (moved, moved, [2.0, 2.0])
    if not overlap:
        assert pparallel.launch(job, keep_momentum_in_numpy) == [-4.25 / 2] * 2


# -- copies ---------------------------------------------------------------------------------------


def evaluate_a_copy(rt: Runtime) -> list[tuple[bool, float]]:
    model, other = begun(rt, one_weight()), one_weight().requires_grad_(False)
    rt.reducer.pull(model)
    found = []
    for _ in range(2 if rt.reducer.trains else 0):
        backward(model, -1.0)
        rt.reducer.step(model)
        found.append((rt.reducer.pull(other), weight(other)))
    rt.reducer.stop()
    rt.reducer.pull(other)
    assert weight(other) == weight(model) == 2.0
    return found


@every_reducer
def test_a_copy_is_pulled_into(name: str) -> None:
    assert launch(1, ALL[name], evaluate_a_copy) == [[(True, 1.0), (True, 2.0)]]


@pytest.mark.parametrize("name", [each for each in SHARED if each != "model_server"])
def test_a_copy_is_pulled_into_where_others_train_too(name: str) -> None:
    trained = launch(2, SHARED[name], evaluate_a_copy)[-1]
    assert trained == [(True, 1.0), (True, 2.0)]


# -- what is managed ------------------------------------------------------------------------------


@every_reducer
def test_swapped_arguments_are_refused(name: str) -> None:
    model = one_weight()
    wrong: Any = descend(model)
    with pparallel.build({"reducer": ALL[name]}) as rt:
        with pytest.raises(TypeError, match=r"Module and its optimizer, and got a SGD first"):
            rt.reducer.manage_model(wrong, model)  # type: ignore[arg-type]
        for other in (model, list(model.parameters()), None):
            with pytest.raises(TypeError, match="takes an optimizer after the model, and got a"):
                rt.reducer.manage_model(model, other)  # type: ignore[arg-type]
        begun(rt, model)  # it may be called again
        rt.reducer.stop()


@every_reducer
def test_an_optimizer_of_other_parameters_is_warned_of(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = one_weight()
    optimizer = descend(model)
    loaded = {"weight": torch.ones(1, 1)}
    model.load_state_dict(loaded, assign=True)  # the optimizer keeps the former parameter
    with pparallel.build({"reducer": ALL[name]}) as rt:
        begun(rt, model, optimizer)
        rt.reducer.stop()
        assert len(warnings(caplog, "no parameter of the model")) == 1
        begun(rt, model)
        rt.reducer.stop()
    assert len(warnings(caplog, "no parameter of the model")) == 1


class Words(nn.Module):
    def __init__(self, max_norm: float | None) -> None:
        super().__init__()
        self.rows = nn.Embedding(2, 1, max_norm=max_norm)


def embed(rt: Runtime, max_norm: float | None) -> None:
    begun(rt, Words(max_norm))
    rt.reducer.stop()


@shared_reducers
def test_max_norm_is_warned_of_with_several_members(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    launch(2, SHARED[name], embed, None)
    launch(1, SHARED[name], embed, 1.0)
    assert not warnings(caplog, "max_norm")
    launch(2, SHARED[name], embed, 1.0)
    (warning,) = warnings(caplog, "max_norm")
    assert warning.startswith("'rows' has max_norm")


# -- steps of the program's own -------------------------------------------------------------------


def step_by_itself(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    before = weight(model)
    backward(model)
    optimizer.step()
    optimizer.zero_grad()
    assert weight(model) == before - 1.0


@every_reducer
def test_a_step_of_the_program_is_refused_until_stop(name: str) -> None:
    model = one_weight()
    optimizer = descend(model)
    with pparallel.build({"reducer": ALL[name]}) as rt:
        rt.reducer.manage_model(model, optimizer)
        for _ in range(2):  # a second run is as the first
            step_by_itself(optimizer, model)
            rt.reducer.start()
            before = weight(model)
            backward(model)
            with pytest.raises(RuntimeError, match=r"call reducer\.step\(model\) alone"):
                optimizer.step()
            assert (weight(model), gradient(model)) == (before, 1.0)
            rt.reducer.step(model)
            assert weight(model) == before - 1.0
            rt.reducer.stop()
    step_by_itself(optimizer, model)


@every_reducer
def test_a_program_steps_after_it_left_without_stop(name: str) -> None:
    model = one_weight()
    optimizer = descend(model)
    with pparallel.build({"reducer": ALL[name]}) as rt:
        begun(rt, model, optimizer)
        backward(model)
        rt.reducer.step(model)
    step_by_itself(optimizer, model)


@every_reducer
def test_optimizers_that_step_during_backward_leave_nothing_to_push(name: str) -> None:
    model = one_weight()
    optimizer = descend(model)

    def step(_: torch.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(step)
    with pparallel.build({"reducer": ALL[name]}) as rt:
        begun(rt, model)
        backward(model)
        with pytest.raises(ValueError, match="'weight' has no gradient"):
            rt.reducer.step(model)
        rt.reducer.stop()
    assert weight(model) == -1.0


def schedule(name: str, model: nn.Module, own_steps: int) -> None:
    optimizer = descend(model)
    halving: LRScheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with pparallel.build({"reducer": ALL[name]}) as rt:
        rt.reducer.manage_model(model, optimizer, halving)
        rt.reducer.start()
        for step in range(3):
            backward(model)
            rt.reducer.step(model)
            if step < own_steps:
                optimizer.zero_grad()
                halving.step()
        rt.reducer.stop()


@every_reducer
@pytest.mark.parametrize("own_steps", [0, 1])
def test_a_scheduler_that_the_program_steps_too_is_warned_of(
    name: str, own_steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    schedule(name, one_weight(), own_steps)
    assert len(warnings(caplog, "was stepped by the program too")) == own_steps


# -- gradients that are not taken -----------------------------------------------------------------


def leave_the_last(rt: Runtime) -> tuple[float, list[float | None]]:
    """Push once in each of two runs; return the weight, and the gradients left by stop()."""
    model, left = one_weight(), []
    for _ in range(2):
        begun(rt, model)
        rt.reducer.pull(model)
        for step in range(3 if rt.reducer.trains else 0):
            if step == 1:
                rt.reducer.step(model)
            backward(model)
        rt.reducer.stop()
        left.append(gradient(model))
    return weight(model), left


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("name", [each for each in ALL if each != "overlap"])
def test_stop_leaves_gradients_that_were_not_pushed(name: str, members: int) -> None:
    steps_of = members if name == "model_server" else 1
    told = launch(members, ALL[name], leave_the_last)[-1]
    assert told == (-(1.0 + 3.0) * steps_of, [2.0, 2.0])


def stop_early_with_a_gradient(rt: Runtime) -> tuple[float, float | None]:
    model = begun(rt, one_weight())
    backward(model, 5.0 - 2 * rt.rank)
    if rt.rank:
        rt.reducer.step(model)
    rt.reducer.stop()
    return weight(model), gradient(model)


def test_a_gradient_that_was_not_pushed_is_in_no_step_of_others() -> None:
    told = launch(2, ALL["all_reduce"], stop_early_with_a_gradient)
    assert told == [(-3.0, 5.0), (-3.0, None)]


def push_without_pull(rt: Runtime) -> int:
    model = begun(rt, one_weight())
    rt.reducer.pull(model)
    refused = 0
    for _ in range(4 if rt.reducer.trains else 0):
        backward(model)
        refused += not rt.reducer.push(model)
    rt.reducer.stop()
    return refused


def test_the_first_of_too_old_gradients_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert launch(2, SHARED["grad_server"], push_without_pull) == [0, 3]
    assert len(warnings(caplog, "(max_staleness)")) == 1


def push_inside_autocast(rt: Runtime, size: float) -> float:
    """Return how far from exact a matrix of rank 1 comes through compression by PowerSGD."""
    model = nn.Linear(8, 8, bias=False)
    nn.init.zeros_(model.weight)
    begun(rt, model)
    random = torch.Generator().manual_seed(0)
    factors = [torch.randn(shape, generator=random) for shape in ((8, 1), (1, 8))]
    exact = size * factors[0] @ factors[1]
    rt.reducer.pull(model)
    for _ in range(4 if rt.reducer.trains else 0):
        with torch.autocast("cpu", torch.float16):
            model.weight.grad = exact.clone()
            rt.reducer.step(model)
    rt.reducer.stop()
    return float((model.weight.detach() + 4 * exact).abs().max() / size)


@pytest.mark.parametrize("name", ["grad_server", "diloco"])
def test_powersgd_inside_autocast_computes_in_the_gradients_dtype(name: str) -> None:
    reducer = {**SHARED[name], "compression": {"kind": "powersgd", "rank": 2}}
    for size in (1e5, 1e-6, 1e-9):
        assert max(launch(2, reducer, push_inside_autocast, size)) < 1e-3, size


# -- optimizers that are not plain ----------------------------------------------------------------


class Lookahead(torch.optim.Optimizer):
    """Wraps another optimizer, and has only what it thinks it needs."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.param_groups, self.state, self.defaults = inner.param_groups, inner.state, {}

    @override
    def step(self, closure: Any = None) -> Any:
        return self.inner.step()


def train_by_lookahead(rt: Runtime) -> float:
    model = one_weight()
    begun(rt, model, Lookahead(descend(model)))
    backward(model)
    rt.reducer.step(model)
    rt.reducer.stop()
    return weight(model)


@every_reducer
def test_a_wrapper_that_lacks_what_optimizers_have_steps(name: str) -> None:
    assert launch(1, ALL[name], train_by_lookahead) == [-1.0]


def train_two_models(rt: Runtime) -> list[float]:
    """Two reducers have one optimizer, which steps both models."""
    models = {"reducer": one_weight(), "other": one_weight()}
    optimizer = torch.optim.SGD([p for each in models.values() for p in each.parameters()], lr=1.0)
    for key, model in models.items():
        rt[key].manage_model(model, optimizer)
        rt[key].start()
    for key, model in models.items():
        backward(model)
        rt[key].step(model)
    for key in models:
        rt[key].stop()
    return [weight(each) for each in models.values()]


@pytest.mark.parametrize("backend", ["local", "all_reduce", "model_server"])
def test_two_reducers_may_share_an_optimizer(backend: str) -> None:
    raw = {
        "reducer": {"backend": backend},
        "extra": {"other": {"interface": "reducer", "backend": backend}},
    }
    assert pparallel.launch(raw, train_two_models) == [[-1.0, -1.0]]


def step_with_a_hook(rt: Runtime) -> float | None:
    model = one_weight()
    optimizer = descend(model)

    def clip(*_: object) -> None:
        for each in model.parameters():
            assert each.grad is not None
            each.grad.mul_(0.5)

    optimizer.register_step_pre_hook(clip)
    begun(rt, model, optimizer)
    backward(model)
    with pytest.raises(RuntimeError, match=r"call reducer\.step"):
        optimizer.step()
    found = gradient(model)
    rt.reducer.stop()
    return found


@every_reducer
def test_a_step_of_the_program_is_refused_before_its_hooks(name: str) -> None:
    assert launch(1, ALL[name], step_with_a_hook) == [1.0]


class Interrupted(BaseException):
    """As KeyboardInterrupt, which ends the test run."""


def interrupt_stop(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    model = one_weight()
    optimizer = descend(model)
    found = []
    for interrupts in (True, False):
        begun(rt, model, optimizer)
        backward(model)
        rt.reducer.step(model)
        if interrupts:
            with monkeypatch.context() as patch:
                patch.setattr("pparallel.runtime.rpc.RpcGroup.meet", interrupted)
                with pytest.raises(Interrupted):
                    rt.reducer.stop()
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
        found.append(weight(model))
    rt.reducer.stop()
    return found


def interrupted(*_: object, **__: object) -> None:
    raise Interrupted


@pytest.mark.parametrize("name", ["grad_server", "diloco", "model_server"])
def test_after_an_interrupted_stop_the_program_may_step_and_begin_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launch(1, ALL[name], interrupt_stop, monkeypatch) == [[-2.0, -3.0]]


# -- models that are not plain --------------------------------------------------------------------


class Actor(nn.Module):
    """Shows its head alone to optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = one_weight(1.0), one_weight(1.0)

    @override
    def named_parameters(self, *args: Any, **options: Any) -> Any:
        return self.head.named_parameters(*args, **options)

    @override
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.encoder(batch))
        return found


def train_an_actor(rt: Runtime) -> tuple[float | None, float]:
    model = begun(rt, Actor())
    backward(model)
    rt.reducer.step(model)
    kept = gradient(model.encoder)
    model.encoder.requires_grad_(False)
    backward(model)
    rt.reducer.step(model)
    rt.reducer.stop()
    return kept, weight(model.head)


@every_reducer
def test_parameters_that_a_model_hides_are_the_programs(name: str) -> None:
    assert launch(1, ALL[name], train_an_actor) == [(1.0, -1.0)]


def fail_with_batch_norm(rt: Runtime) -> tuple[float, int]:
    """One member has BatchNorm, and an optimizer that fails before it moves anything."""
    model = nn.BatchNorm1d(1)
    optimizer = descend(model)
    seen: list[int] = []

    def fail(*_: object) -> None:
        seen.append(int(model.get_buffer("num_batches_tracked")))
        raise MemoryError

    optimizer.register_step_pre_hook(fail)
    begun(rt, model, optimizer)
    if rt.reducer.trains:
        model(torch.full((4, 1), 10.0) + torch.randn(4, 1)).sum().backward()
        rt.reducer.push(model)
    with pytest.raises(MemoryError):
        rt.reducer.stop()
    return model.get_buffer("running_mean").item(), sum(seen)


def test_a_step_that_fails_leaves_no_buffers_in_the_managed_model() -> None:
    (mean, seen), _ = launch(2, SHARED["grad_server"], fail_with_batch_norm)
    assert (mean, seen) == (0.0, 1), "the hook sees the buffers of the step"


def train_after_pulling(rt: Runtime) -> bool:
    """What was pulled into in a former run is nothing to the next, which has another model."""
    model, copy = nn.Sequential(one_weight()), nn.Sequential(one_weight())
    begun(rt, model)
    rt.reducer.pull(copy)
    rt.reducer.stop()
    model.append(one_weight())
    begun(rt, model)
    rt.reducer.stop()
    return True


@every_reducer
def test_a_model_pulled_into_in_a_former_run_is_left_alone(name: str) -> None:
    assert launch(1, ALL[name], train_after_pulling) == [True]


def start_with_cut_parameters(rt: Runtime) -> None:
    model = nn.Linear(8, 1, bias=False)
    begun(rt, model)
    rt.reducer.stop()


def test_an_optimizer_whose_parameters_are_cut_is_the_models(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reducer = {"backend": "grad_server", "primaries": ["member-0", "member-1"]}
    launch(3, reducer, start_with_cut_parameters)
    assert not warnings(caplog, "no parameter of the model")


# -- inference mode -------------------------------------------------------------------------------


def step_in_inference_mode(rt: Runtime) -> float | None:
    model = one_weight()
    if rt.reducer.manages:
        rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), 1.0, momentum=0.5))
    rt.reducer.start()
    rt.reducer.pull(model)
    for number in range(3 if rt.reducer.trains else 0):
        backward(model)
        with torch.inference_mode(number < 2):
            rt.reducer.step(model)
    rt.reducer.stop()
    return weight(model) if rt.reducer.trains else None


@every_reducer
def test_steps_in_inference_mode_are_like_any_others(name: str) -> None:
    found = launch(2, ALL[name], step_in_inference_mode)
    moved = {each for each in found if each is not None}
    # Steps of members that wait for nobody add up.
    assert moved == ({-8.5} if name == "model_server" else {-4.25})
