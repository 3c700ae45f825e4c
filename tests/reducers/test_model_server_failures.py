"""The reducer ``model_server``: pushes that fail after the optimizer has stepped."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from reducer_models import launch
from torch import Tensor, nn
from typing_extensions import override

import pparallel
from pparallel.builder import Runtime
from pparallel.interfaces.reducer import Counters
from pparallel_reducers import ModelServerReducerConfig

LOST = "reducer/reducer/model"  #: the key that is pushed to


class Network(nn.Module):
    """A layer, a running mean, and a mask that is averaged with the others'."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.mask: Tensor
        self.register_buffer("mask", torch.tensor([torch.finfo(torch.float32).min, -math.inf]))
        random = torch.Generator().manual_seed(3)
        for each in self.parameters():
            each.data = torch.randn(each.shape, generator=random)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.norm(self.layer(inputs))
        return found


class ByHand:
    """An optimizer that is not torch's, with momentum that it replaces in each step."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.momentum: dict[int, Tensor] = {}
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        for number, each in enumerate(self.parameters):
            assert each.grad is not None
            former = self.momentum.get(number, torch.zeros(()))
            self.momentum[number] = 0.5 * former + each.grad
            with torch.no_grad():
                each.sub_(self.momentum[number] / self.steps)


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda _: None,
    "one cycle": lambda made: torch.optim.lr_scheduler.OneCycleLR(made, 0.1, total_steps=30),
    "sequence": lambda made: torch.optim.lr_scheduler.SequentialLR(
        made,
        [
            torch.optim.lr_scheduler.LinearLR(made, total_iters=2),
            torch.optim.lr_scheduler.MultiStepLR(made, [1, 2]),
        ],
        [2],
    ),
}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
    "lbfgs": lambda parameters: WithClosure(parameters, lr=0.1),
    "by hand": ByHand,
}


class WithClosure(torch.optim.LBFGS):
    """Has lists of tensors as its state; its loss is always the same."""

    @override
    def step(self, closure: Any = None) -> Any:
        return super().step(lambda: torch.zeros(()))  # type: ignore[no-untyped-call]


class Failing:
    """What raises in the pushes to an ordered server, before or after they are stored."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, rt: Runtime, error: BaseException, when: str
    ) -> None:
        self.fails = False
        self.meanwhile: Callable[[], object] = int
        push = rt.ordered_server.push

        def failing(key: Any, *args: Any) -> bool:
            if not self.fails or key != LOST:
                return push(key, *args)
            if when == "after" and not push(key, *args):
                return False
            self.fails = False
            self.meanwhile()
            raise error

        monkeypatch.setattr(rt.ordered_server, "push", failing)


def backward(model: nn.Module, step: int) -> None:
    inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
    (model(inputs) - inputs[:, :2]).square().sum().backward()


def state(model: nn.Module, made: Any, scheduler: Any) -> Any:
    kept = made.state_dict() if isinstance(made, torch.optim.Optimizer) else vars(made)
    rates = None if scheduler is None else scheduler.state_dict()
    for each in rates.get("_schedulers", ()) if rates else ():
        each.pop("optimizer", None)
    return copy.deepcopy([model.state_dict(), kept, rates])


def check_same(found: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            check_same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        for one, other in zip(found, expected, strict=True):
            check_same(one, other)
    elif not isinstance(expected, nn.Module):
        assert type(found) is type(expected)
        assert found == expected or not isinstance(expected, bool | int | float | str)


@pytest.mark.parametrize(
    ("optimizer", "scheduler", "fails_at", "rebase"),
    [
        ("momentum", "one cycle", 0, True),
        ("adam", "sequence", 2, False),
        ("lbfgs", "sequence", 2, True),
        ("by hand", "none", 0, False),
    ],
)
def test_a_push_that_fails_takes_nothing_and_a_retry_is_one_step(
    monkeypatch: pytest.MonkeyPatch, optimizer: str, scheduler: str, fails_at: int, rebase: bool
) -> None:
    expected = Network()
    parts = [OPTIMIZERS[optimizer](expected.parameters())]
    parts.append(SCHEDULERS[scheduler](parts[0]))
    with pparallel.build({"reducer": {"backend": "model_server", "rebase": rebase}}) as rt:
        model = Network()
        made = OPTIMIZERS[optimizer](model.parameters())
        rates = SCHEDULERS[scheduler](made)
        failing = Failing(monkeypatch, rt, TimeoutError("no reply"), "before")
        rt.reducer.manage_model(model, made, rates)
        rt.reducer.start()
        for step in range(4):
            backward(model, step)
            backward(expected, step)
            before = state(model, made, rates)
            gradients = [
                (each.grad, each.grad.clone())
                for each in model.parameters()
                if each.grad is not None
            ]
            if step == fails_at:
                failing.fails = True
                with pytest.raises(TimeoutError):
                    rt.reducer.push(model)
                check_same(state(model, made, rates), before)
                for each, (gradient, value) in zip(model.parameters(), gradients, strict=True):
                    assert each.grad is gradient
                    assert torch.equal(gradient, value)
            assert rt.reducer.push(model)
            for each in parts:
                if each is not None:
                    each.step()
            expected.zero_grad()
            check_same(state(model, made, rates), state(expected, *parts))
        rt.reducer.stop()
        assert rt.reducer.counters()[:5] == Counters(pushed=4, reduced=4)[:5]


def test_a_push_whose_reply_is_lost_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pparallel.build({"reducer": {"backend": "model_server"}}) as rt:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        failing = Failing(monkeypatch, rt, TimeoutError("no reply"), "after")
        rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
        rt.reducer.start()
        for step in range(3):
            model.weight.grad = torch.ones(1, 1)
            failing.fails = step == 1
            assert rt.reducer.push(model)
            assert model.weight.item() == -1.0 - step
        rt.reducer.stop()
        assert model.weight.item() == -3
        assert rt.reducer.counters()[:5] == Counters(pushed=3, reduced=3)[:5]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_push_of_which_nothing_is_known_counts_once_when_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    with pparallel.build({"reducer": {"backend": "model_server"}}) as rt:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        failing = Failing(monkeypatch, rt, TimeoutError("no reply"), when)
        rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
        rt.reducer.start()
        failing.fails = True
        model.weight.grad = torch.ones(1, 1)
        with monkeypatch.context() as patched:

            def pull(*_: object, **__: object) -> None:
                message = "nothing either"
                raise TimeoutError(message)

            patched.setattr(rt.ordered_server, "pull", pull)
            with pytest.raises(TimeoutError, match="no reply"):
                rt.reducer.push(model)
        assert model.weight.item() == 0
        assert rt.reducer.push(model)
        rt.reducer.stop()
        assert model.weight.item() == -1
        assert rt.reducer.counters()[:5] == Counters(pushed=1, reduced=1)[:5]


def push_while_another_does(rt: Runtime, stored: bool) -> Any:
    """A push of the second member raises, stored or not, and then the first member pushes."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    barrier = rt.group().barrier
    rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    rt.reducer.start()
    model.weight.grad = torch.full((1, 1), 1.0 + 9 * rt.rank)
    if rt.rank == 0:
        barrier()  # the other's push is stored, or not, and its reply is lost
        assert rt.reducer.push(model)
        barrier()
    else:
        with pytest.MonkeyPatch.context() as patched:
            when = "after" if stored else "before"
            failing = Failing(patched, rt, TimeoutError("no reply"), when)
            failing.fails = True
            failing.meanwhile = lambda: (barrier(), barrier())
            if not stored:
                with pytest.raises(TimeoutError):
                    rt.reducer.push(model)
                assert model.weight.item() == 0
            assert rt.reducer.push(model)
    rt.reducer.stop()
    return model.weight.item(), rt.reducer.counters()


@pytest.mark.parametrize("stored", [True, False])
def test_whatever_others_push_meanwhile_each_step_counts_once(stored: bool) -> None:
    results = launch(2, ModelServerReducerConfig(), push_while_another_does, stored)
    for weight, counters in results:
        assert weight == -11
        assert counters[:5] == Counters(pushed=1, reduced=1)[:5]


class Stuck(torch.optim.SGD):
    """Raises when half of its parameters have moved."""

    @override
    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            self.param_groups[0]["params"][0].add_(1)
        message = "stuck"
        raise ArithmeticError(message)


def test_an_optimizer_that_fails_half_way_is_undone() -> None:
    with pparallel.build({"reducer": {"backend": "model_server"}}) as rt:
        model = Network()
        rt.reducer.manage_model(model, Stuck(model.parameters(), lr=1.0))
        rt.reducer.start()
        backward(model, 0)
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(ArithmeticError, match="stuck"):
            rt.reducer.push(model)
        check_same([model.state_dict()], [before])
        assert all(each.grad is not None for each in model.parameters())
        rt.reducer.stop()


def rebase_masks(rt: Runtime) -> tuple[list[float], float]:
    model = Network()
    rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=0.1))
    rt.reducer.start()
    if rt.rank == 1:
        rt.group().barrier()
    backward(model, rt.rank)
    rt.reducer.push(model)
    if rt.rank == 0:
        rt.group().barrier()
    rt.reducer.stop()
    return model.mask.tolist(), rt.reducer.counters().staleness


def test_masks_stay_as_they_are_where_a_step_is_put_onto_others() -> None:
    for rank, (mask, staleness) in enumerate(launch(2, ModelServerReducerConfig(), rebase_masks)):
        assert mask == [torch.finfo(torch.float32).min, -math.inf]
        assert staleness == rank


def test_a_running_mean_of_nan_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with pparallel.build({"reducer": {"backend": "model_server", "refuse_nan": True}}) as rt:
        model = Network()
        rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=0.1))
        rt.reducer.start()
        backward(model, 0)
        assert rt.reducer.push(model), "a mask of infinities is no fault"
        assert model.norm.running_mean is not None
        model.norm.running_mean[1] = math.nan
        backward(model, 1)
        weight = model.layer.weight.detach().clone()
        assert not rt.reducer.push(model)
        assert torch.equal(model.layer.weight, weight)
        assert all(each.grad is None for each in model.parameters())
        assert "(refuse_nan): buffer 'norm.running_mean' holds NaN" in caplog.text
        rt.reducer.stop()
        assert rt.reducer.counters()[:5] == Counters(pushed=1, reduced=1, refused=1)[:5]


def test_sparse_gradients_stay_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_dense(*_: object) -> None:
        pytest.fail("a dense copy of a gradient was made")

    monkeypatch.setattr(torch.Tensor, "to_dense", to_dense)
    with pparallel.build({"reducer": {"backend": "model_server", "refuse_nan": True}}) as rt:
        model = nn.Embedding(5, 2, sparse=True)
        nn.init.zeros_(model.weight)
        failing = Failing(monkeypatch, rt, TimeoutError("no reply"), "before")
        rt.reducer.manage_model(model, torch.optim.SparseAdam(model.parameters(), lr=1.0))
        rt.reducer.start()
        model(torch.tensor([1, 1])).sum().backward()
        failing.fails = True
        with pytest.raises(TimeoutError):
            rt.reducer.push(model)
        assert not model.weight.any()
        assert rt.reducer.push(model)
        assert [round(each, 4) for each in model.weight.sum(1).tolist()] == [0, -2, 0, 0, 0]
        rt.reducer.stop()


@pytest.mark.parametrize("then", ["push", "pull", "stop"])
def test_a_push_whose_wait_was_interrupted_takes_nothing(
    monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    with pparallel.build({"reducer": {"backend": "model_server"}}) as rt:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        failing = Failing(monkeypatch, rt, KeyboardInterrupt(), "after")
        rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
        rt.reducer.start()
        model.weight.grad = torch.ones(1, 1)
        failing.fails = True
        with pytest.raises(KeyboardInterrupt):
            rt.reducer.push(model)
        if then != "stop":
            getattr(rt.reducer, then)(model)
        rt.reducer.stop()
        pushed = then == "push"
        assert model.weight.item() == -pushed
        assert rt.reducer.counters()[:5] == Counters(pushed=pushed, reduced=pushed)[:5]


class Target(nn.Module):
    """A trained parameter, and a frozen one that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Parameter(torch.zeros(3))
        self.target = nn.Parameter(torch.zeros(3), requires_grad=False)


@pytest.mark.parametrize("fails_at", [0, 2])
def test_a_push_that_fails_undoes_what_a_hook_wrote_into_a_frozen_parameter(
    monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    with pparallel.build({"reducer": {"backend": "model_server"}}) as rt:
        model = Target()
        made = torch.optim.SGD([model.online], lr=1.0)

        def follow(*_: object) -> None:
            model.target.data += 1.0

        made.register_step_post_hook(follow)
        failing = Failing(monkeypatch, rt, TimeoutError("no reply"), "before")
        rt.reducer.manage_model(model, made)
        rt.reducer.start()
        for step in range(4):
            model.online.grad = torch.ones(3)
            if step == fails_at:
                failing.fails = True
                with pytest.raises(TimeoutError):
                    rt.reducer.push(model)
                assert model.target.tolist() == [step] * 3
            assert rt.reducer.push(model)
            assert model.target.tolist() == [step + 1] * 3
        rt.reducer.stop()


def test_a_start_whose_layout_is_refused_publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pparallel.build({"reducer": {"backend": "model_server"}}) as rt:
        model, push = Target(), rt.ordered_server.push

        def refused(key: str, *args: Any) -> bool:
            return not key.endswith("/layout") and push(key, *args)

        monkeypatch.setattr(rt.ordered_server, "push", refused)
        rt.reducer.manage_model(model, torch.optim.SGD([model.online], lr=1.0))
        with pytest.raises(RuntimeError, match="/layout': somebody else pushed to it"):
            rt.reducer.start()
        assert rt.ordered_server.keys() == []
