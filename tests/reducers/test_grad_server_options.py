"""Options of the gradient server: bounded staleness, compression, refusing NaN."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from reducer_models import launch
from torch import nn

import pparallel
from pparallel.errors import ConfigError
from pparallel.interfaces.reducer import Counters
from pparallel.runtime.events import GradientsRefused, Reduced
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.reducer import backward, line, parameters
from pparallel_reducers import GradServerReducerConfig

if TYPE_CHECKING:
    from pparallel.builder import Runtime


def manage(rt: Runtime, model: nn.Module, lr: float = 1.0) -> None:
    if rt.reducer.manages:
        rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=lr))


def weight(size: int = 1) -> nn.Linear:
    model = nn.Linear(size, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def give(model: nn.Linear, value: float) -> None:
    model.weight.grad = torch.full_like(model.weight, value)


# -- bounded staleness ----------------------------------------------------------------------------


class Gates:
    """What the members of one test wait for."""

    def __init__(self) -> None:
        self.slow_pulled, self.quick_done = threading.Event(), threading.Event()
        self.versions: list[int] = []


def one_is_slow(rt: Runtime, gates: Gates, leaves: bool) -> tuple[float, Counters, list[float]]:
    """Have one member hold what it pulled, while another goes on."""
    reducer, model = rt.reducer, weight()
    steps: list[float] = []
    rt.events.subscribe(lambda event: steps.append(event.staleness), Reduced)  # type: ignore[attr-defined]
    manage(rt, model)
    reducer.start()
    if rt.name == "slow":
        reducer.pull(model)
        gates.slow_pulled.set()
        if leaves:
            return 0.0, reducer.counters(), steps
        assert gates.quick_done.wait(PATIENCE)
        keys = rt.ordered_server.keys()
        gates.versions.extend(max(rt.ordered_server.versions(key)) for key in keys)
        give(model, 1.0)
        assert reducer.push(model)
    elif reducer.trains and rt.name == "quick":
        assert gates.slow_pulled.wait(PATIENCE)
        bound = rt.config.reducer.max_staleness  # type: ignore[union-attr]
        for _ in range(10 if bound else 1):
            give(model, 1.0)
            assert reducer.push(model)
            if bound:
                reducer.pull(model)
        gates.quick_done.set()
        if not bound:  # then a pull waits for the step, which waits for the slow member
            assert reducer.pull(model)
    reducer.stop()
    return float(model.weight.detach()), reducer.counters(), steps


BOUNDED = [
    {"primary": "ps"},
    {"primary": "ps", "secondaries": ("s",), "reduce_batch_size": 3},
    {"primary": "ps", "secondaries": ("slow", "quick")},
    {"primaries": ("ps", "ps-1"), "secondaries": ("s", "ps-1")},
]


@pytest.mark.parametrize("bound", [0, 2])
@pytest.mark.parametrize("options", BOUNDED)
def test_a_step_waits_for_what_it_would_make_too_old(bound: int, options: dict[str, Any]) -> None:
    members = ["ps", "ps-1", "s", "slow", "quick"]
    config = GradServerReducerConfig(**options, max_staleness=bound, reduce_method="sum")
    gates = Gates()
    results = dict(zip(members, launch(members, config, one_is_slow, gates, False), strict=True))
    assert max(gates.versions) <= bound, "what the slow member computes would be too old"
    ps, slow, quick = (results[each] for each in ("ps", "slow", "quick"))
    pushed = sum(counters.pushed for _, counters, _ in results.values())
    assert (slow[1].pushed, quick[1].pushed) == (1, 10 if bound else 1)
    assert ps[1].reduced == pushed
    assert {value for value, _, _ in (ps, slow, quick)} == {float(-pushed)}
    assert max(ps[2]) <= bound


@pytest.mark.parametrize("options", BOUNDED[:2])
def test_nobody_waits_for_a_member_that_ended(options: dict[str, Any]) -> None:
    slow: Any = {"name": "slow", "override": {"close_timeout": 0.05}}
    config = GradServerReducerConfig(**options, max_staleness=0, dedicated=True)
    gates = Gates()
    results = launch(["ps", "s", slow, "quick"], config, one_is_slow, gates, True)
    assert results[0][1].reduced == sum(counters.pushed for _, counters, _ in results)
    assert max(results[0][2]) == 0


def push_without_pulling(rt: Runtime) -> tuple[Counters, list[str]]:
    reducer, model, reasons = rt.reducer, weight(), list[str]()
    rt.events.subscribe(lambda event: reasons.append(event.reason), GradientsRefused)  # type: ignore[attr-defined]
    manage(rt, model)
    reducer.start()
    pulled = weight()
    if rt.name == "a":
        reducer.pull(model)
        for version in range(1, 3):
            give(model, 1.0)
            assert reducer.push(model)
            until(lambda version=version: newest(rt) == version, "no step")  # type: ignore[misc]
        give(model, 1.0)
        assert not reducer.push(model)
        assert model.weight.grad is None, "it would be added to the next"
        assert reducer.pull(pulled)
        give(pulled, 1.0)
        assert reducer.push(pulled)
    reducer.stop()
    return reducer.counters(), reasons


def newest(rt: Runtime) -> int:
    (key,) = rt.ordered_server.keys()
    return int(rt.ordered_server.versions(key)[-1])


def test_what_is_too_old_is_refused_and_counted() -> None:
    config = GradServerReducerConfig(max_staleness=1)
    (ps, reasons), (a, _) = launch(["ps", "a"], config, push_without_pulling)
    assert (ps.reduced, ps.refused, a.pushed, a.refused) == (3, 1, 3, 0)
    assert reasons == [
        "it was computed on version 0 of the parameters, and would be more than 1 steps behind"
        " (max_staleness): pull before the next gradient"
    ]


def train(rt: Runtime, steps: int) -> tuple[list[list[float]], float, Counters, list[float]]:
    reducer, model = rt.reducer, line(rt.rank)
    steps_told: list[float] = []
    rt.events.subscribe(lambda event: steps_told.append(event.staleness), Reduced)  # type: ignore[attr-defined]
    manage(rt, model, lr=0.05)
    reducer.start()
    reducer.pull(model)
    for step in range(steps if reducer.trains else 0):
        backward(model, step * rt.world_size + rt.rank, 1.0)
        reducer.step(model)
    reducer.stop()
    loss = float(backward(model, 0, 1.0).detach())
    return parameters(model), loss, reducer.counters(), steps_told


@pytest.mark.parametrize(
    ("bound", "secondaries"), [(0, ("b", "c")), (1, None), (3, ("ps", "d")), (0, None)]
)
def test_no_step_is_on_older_parameters(bound: int, secondaries: tuple[str, ...] | None) -> None:
    config = GradServerReducerConfig(
        secondaries=secondaries, max_staleness=bound, max_queue_size=4, reduce_batch_size=2
    )
    results = launch(["ps", "a", "b", "c", "d"], config, train, 30)
    assert [each[0] for each in results] == [results[0][0]] * 5
    pushed = sum(counters.pushed for _, _, counters, _ in results)
    refused = sum(counters.refused for _, _, counters, _ in results)
    assert (pushed, refused) == (4 * 30, 0)
    assert results[0][2].reduced == pushed
    assert max(results[0][3]) <= bound


# -- compression ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compression", "options"),
    [
        ({"kind": "bf16"}, {"primaries": ("ps", "a"), "dedicated": False}),
        ({"kind": "topk", "ratio": 0.25}, {"secondaries": ("a", "b"), "reduce_batch_size": 2}),
        ({"kind": "powersgd", "rank": 1}, {}),
        ({"kind": "powersgd", "rank": 1}, {"primaries": ("ps", "a"), "dedicated": False}),
    ],
)
def test_training_with_compressed_gradients(
    compression: dict[str, Any], options: dict[str, Any]
) -> None:
    config: Any = {"backend": "grad_server", "compression": compression, **options}
    job = {"members": ["ps", "a", "b"], "reducer": config}
    results = pparallel.launch(job, train, (100,))
    assert [each[0] for each in results] == [results[0][0]] * 3
    assert max(loss for _, loss, _, _ in results) < 0.1
    pushed = sum(counters.pushed for _, _, counters, _ in results)
    assert results[0][2].reduced == pushed


def push_large(rt: Runtime, count: int) -> tuple[list[float], int]:
    reducer, model = rt.reducer, weight(100_000)
    manage(rt, model)
    reducer.start()
    for number in range(count if reducer.trains else 0):
        model.weight.grad = torch.zeros_like(model.weight)
        model.weight.grad[0, number] = 1.0
        reducer.push(model)
    reducer.stop()
    return model.weight[0, :count].tolist(), reducer.counters().sent_bytes


def test_compressed_gradients_are_small() -> None:
    whole = GradServerReducerConfig()
    config = GradServerReducerConfig.model_validate(
        {"compression": {"kind": "topk", "ratio": 0.01}}
    )
    (ps, _), (a, sent) = launch(["ps", "a"], whole, push_large, 5)
    assert sent == 5 * 400_000
    assert ps == a == [-1.0] * 5
    (ps, _), (a, less) = launch(["ps", "a"], config, push_large, 5)
    assert less < sent / 40
    assert ps == a == [-1.0] * 5


# -- gradients that are not finite ----------------------------------------------------------------


def push_nan(rt: Runtime, value: float) -> tuple[float, Counters, list[tuple[str, str]]]:
    reducer, model, told = rt.reducer, weight(), list[tuple[str, str]]()
    rt.events.subscribe(lambda event: told.append((event.sender, event.reason)), GradientsRefused)  # type: ignore[attr-defined]
    manage(rt, model)
    reducer.start()
    if reducer.trains:
        for each in (1.0, value, 2.0):
            give(model, each)
            assert reducer.push(model) == math.isfinite(each)
            assert model.weight.grad is None
    reducer.stop()
    return float(model.weight.detach()), reducer.counters(), told


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_gradients_that_are_not_finite_are_refused(value: float) -> None:
    config = GradServerReducerConfig(refuse_nan=True)
    ps, a = launch(["ps", "a"], config, push_nan, value)
    assert (ps[0], a[0]) == (-3.0, -3.0)
    assert ps[1][:5] == Counters(reduced=2)[:5]
    assert a[1][:5] == Counters(pushed=2, refused=1)[:5]
    assert a[2] == [("a", "the gradient of 'weight' is not finite")]


def push_extremes(rt: Runtime) -> bool:
    reducer, model = rt.reducer, weight(2)
    manage(rt, model)
    reducer.start()
    give(model, torch.finfo(torch.float32).max)  # the sum of which is not finite
    accepted = reducer.push(model)
    reducer.stop()
    return accepted


def test_large_gradients_are_finite() -> None:
    assert launch(["ps"], GradServerReducerConfig(refuse_nan=True), push_extremes) == [True]


def push_nan_anyway(rt: Runtime) -> float:
    reducer, model = rt.reducer, weight()
    manage(rt, model)
    reducer.start()
    give(model, math.nan)
    assert reducer.push(model)
    reducer.stop()
    return float(model.weight.detach())


def test_nan_is_taken_where_nobody_says_otherwise() -> None:
    (found,) = launch(["ps"], GradServerReducerConfig(), push_nan_anyway)
    assert math.isnan(found)


# -- bad input ------------------------------------------------------------------------------------


def push_one_of(rt: Runtime, changed: str) -> str:
    """Push a model that differs from the managed one."""
    reducer, model = rt.reducer, line()
    manage(rt, model)
    reducer.start()
    said = ""
    if reducer.trains:
        other: nn.Module = line()
        if changed == "dtype":
            other = other.double()
        elif changed == "shape":
            other = line(outputs=2)
        elif changed == "name":
            other = nn.ModuleDict({"first": nn.Linear(3, 4), "second": nn.Linear(4, 1)})
        else:
            other[0].requires_grad_(False)  # type: ignore[index]
        for each in other.parameters():
            each.grad = torch.ones_like(each) if each.requires_grad else None
        with pytest.raises(ValueError, match="the model is not like the managed one") as caught:
            reducer.push(other)
        assert any(each.grad is not None for each in other.parameters())
        said = str(caught.value)
    reducer.stop()
    assert reducer.counters().refused == (not reducer.trains)
    return said


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ("dtype", "trainable '0.weight' of shape (4, 3) and dtype float64"),
        ("shape", "trainable '1.weight' of shape (2, 4) and dtype float32"),
        ("name", "trainable 'first.weight' of shape (4, 3) and dtype float32"),
        ("frozen", "frozen '0.weight' of shape (4, 3) and dtype float32"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"compression": {"kind": "bf16"}}, {"max_staleness": 0}])
def test_a_model_that_differs(changed: str, difference: str, options: dict[str, Any]) -> None:
    config = GradServerReducerConfig.model_validate(options)
    _, said = launch(["ps", "a"], config, push_one_of, changed)
    assert said.startswith(f"the model is not like the managed one: it has {difference}, the")


@pytest.mark.parametrize("bound", [None, 0, 1])
def test_a_batch_may_be_larger_than_the_queue(bound: int | None) -> None:
    """The queue holds what waits to be summed, and what is summed waits in no queue."""
    config = GradServerReducerConfig(reduce_batch_size=7, max_queue_size=1, max_staleness=bound)
    results = launch(["ps", "a", "b"], config, train, 10)
    assert results[0][2].reduced == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_staleness": -1}, r"max_staleness"),
        ({"compression": {"kind": "topk", "ratio": 2}}, r"compression.*ratio"),
        ({"compression": {"kind": "top"}}, r"compression.*Did you mean 'topk'"),
        ({"reduce_batch_size": 0}, r"reduce_batch_size"),
        ({"max_queue_size": 0}, r"max_queue_size"),
        ({"refuse_nans": True}, r"refuse_nans.*Did you mean 'refuse_nan'"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pparallel.load({"reducer": {"backend": "grad_server", **options}})


# -- a dedicated primary --------------------------------------------------------------------------


def train_what_is_managed(rt: Runtime) -> str:
    model = weight()
    manage(rt, model)
    rt.reducer.start()
    refused = ""
    give(model, 1.0)
    try:
        rt.reducer.step(model)
    except RuntimeError as error:
        refused = str(error)
    if rt.reducer.manages:  # another model may be trained there
        other = weight()
        give(other, 1.0)
        assert rt.reducer.push(other)
    rt.reducer.stop()
    return refused


def test_a_dedicated_primary_does_not_train_its_model() -> None:
    config = GradServerReducerConfig(dedicated=True)
    first, second = launch(["ps", "a"], config, train_what_is_managed)
    assert "is a dedicated primary" in first
    assert "'trains' is true" in first
    assert second == ""
