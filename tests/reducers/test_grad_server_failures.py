"""The reducer ``grad_server``: back-pressure, refusals and failures."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from reducer_models import begun, launch, one_weight, weight
from torch import nn
from typing_extensions import override

import pparallel
from pparallel.interfaces.reducer import Counters
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.reducer import backward, line, manage
from pparallel_reducers import GradServerReducerConfig

if TYPE_CHECKING:
    from pparallel.builder import Runtime


class SlowSGD(torch.optim.SGD):
    """Its steps wait until they are let go, or fail."""

    gate = threading.Event()
    error: Exception | None = None

    @override
    def step(self, closure: Any = None) -> Any:
        assert self.gate.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return super().step()


@pytest.fixture
def gate() -> Any:
    SlowSGD.gate = threading.Event()
    SlowSGD.error = None
    yield SlowSGD.gate
    SlowSGD.gate.set()


def push_until_held_back(rt: Runtime, count: int, full: int) -> tuple[float, Counters, int]:
    reducer, model = rt.reducer, one_weight()
    held_back_at: list[int] = []
    if reducer.manages:
        reducer.manage_model(model, SlowSGD(model.parameters(), lr=1.0))
    reducer.start()

    def open_gate() -> None:
        until(lambda: reducer.counters().pushed >= full, "the queues were not filled")
        threading.Event().wait(0.1)  # one push more would have been acknowledged by now
        held_back_at.append(reducer.counters().pushed)
        SlowSGD.gate.set()

    if reducer.trains:
        opener = threading.Thread(target=open_gate)
        opener.start()
        for _ in range(count):
            next(iter(model.parameters())).grad = torch.ones(1, 1)
            reducer.push(model)
        opener.join()
    reducer.stop()
    return weight(model), reducer.counters(), sum(held_back_at)


@pytest.mark.parametrize("queue", [1, 4])
def test_a_full_queue_holds_back_and_drops_nothing(gate: threading.Event, queue: int) -> None:
    config = GradServerReducerConfig(max_queue_size=queue)
    full = 2 * (queue + 1)  # each level holds its queue, and one message in its thread's hands
    results = launch(["ps", "a"], config, push_until_held_back, 20, full)
    assert [each for each, _, _ in results] == [-20.0] * 2
    assert results[0][1].reduced == 20
    assert results[1][2] == full


def push_another_model(rt: Runtime) -> int:
    reducer, model = rt.reducer, line()
    manage(reducer, model)
    reducer.start()
    if rt.name == "wide":
        other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        backward(other, 1)
        with pytest.raises(ValueError, match=r"it has trainable '1\.weight' of shape \(2, 4\).*"):
            reducer.push(other)
        assert other[1].weight.grad is not None
        with pytest.raises(ValueError, match=r"the managed has trainable '1\.weight'.*\(1, 4\)"):
            reducer.pull(other)
    if rt.name == "short":
        other = nn.Sequential(nn.Linear(3, 4))
        backward(other, 1)
        with pytest.raises(ValueError, match="it has nothing more"):
            reducer.push(other)
    if rt.name == "looks on":
        model.requires_grad_(False)
        assert reducer.pull(model)
    reducer.stop()
    return reducer.counters().refused


def test_a_model_that_does_not_match_is_refused() -> None:
    members = ["ps", "wide", "short", "looks on"]
    assert launch(members, GradServerReducerConfig(), push_another_model) == [2, 0, 0, 0]


def push_to_a_failing_optimizer(rt: Runtime) -> list[str]:
    reducer, model = rt.reducer, one_weight()
    if reducer.manages:
        reducer.manage_model(model, SlowSGD(model.parameters(), lr=1.0))
    reducer.start()
    errors = []
    if reducer.trains:
        for _ in range(50):
            next(iter(model.parameters())).grad = torch.ones(1, 1)
            try:
                reducer.push(model)
            except ArithmeticError as error:
                errors.append(f"push: {error}")
                break
    rt.group().barrier()
    try:
        reducer.watch()
    except ArithmeticError as error:
        errors.append(f"watch: {error}")
    try:
        reducer.stop()
    except ArithmeticError as error:
        errors.append(f"stop: {error}")
    return errors


@pytest.mark.parametrize("secondary", ["ps", "b"])
def test_a_reducing_thread_that_fails(gate: threading.Event, secondary: str) -> None:
    SlowSGD.error = ArithmeticError("too steep")
    gate.set()
    config = GradServerReducerConfig(secondaries=(secondary,))
    servers, a, b = launch(["ps", "a", "b"], config, push_to_a_failing_optimizer)
    assert servers == ["watch: too steep", "stop: too steep"]
    assert a == ["push: too steep", "stop: too steep"]
    watched = ["watch: too steep"] if secondary == "b" else []
    assert b == ["push: too steep", *watched, "stop: too steep"]


def push_to_a_taken_key(rt: Runtime) -> None:
    reducer, model = rt.reducer, one_weight()
    begun(rt, model)
    (key,) = rt.ordered_server.keys()
    assert rt.ordered_server.push(key, "mine", 7, rt.ordered_server.versions(key)[-1])
    parameter = next(iter(model.parameters()))
    parameter.grad = torch.ones(1, 1)
    for call in (partial(reducer.push, model), reducer.stop):
        with pytest.raises(RuntimeError, match=r"refused version 1.*somebody else"):
            call()
    assert parameter.grad is None  # it was stepped on


def test_a_refused_publication_is_an_error() -> None:
    with pparallel.build() as rt:
        push_to_a_taken_key(rt)
        assert rt.reducer.counters().reduced == 0


def fail_while_training(rt: Runtime) -> None:
    reducer, model = rt.reducer, one_weight()
    if reducer.manages:
        reducer.manage_model(model, SlowSGD(model.parameters(), lr=1.0))
    reducer.start()
    if rt.name == "a":
        next(iter(model.parameters())).grad = torch.ones(1, 1)
        reducer.push(model)
        SlowSGD.gate.set()
        message = "in the middle"
        raise KeyError(message)
    reducer.stop()


def test_a_member_that_fails_ends_the_reducing(gate: threading.Event) -> None:
    with pytest.raises(KeyError, match="in the middle"):
        launch(["ps", "a", "b"], GradServerReducerConfig(secondaries=("b",)), fail_while_training)
