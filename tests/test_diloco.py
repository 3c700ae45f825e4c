"""The reducer ``diloco``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import preloads
import pytest
import torch
from diloco_steps import draw, step_on
from reducer_models import Odd, begun, check_a_step, launch, numbers, values
from torch import nn
from typing_extensions import override

import pparallel
from pparallel.errors import ConfigError
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.reducer import Counters, ReducerConfig
from pparallel.testing import ReducerSuite
from pparallel.testing.reducer import line, manage
from pparallel_process import ProcessLauncherConfig
from pparallel_reducers import DilocoReducerConfig
from pparallel_reducers.diloco.outer import Outer
from pparallel_reducers.diloco.weights import Weights

if TYPE_CHECKING:
    from pparallel.builder import Runtime


AVERAGE = DilocoReducerConfig(inner_steps=1, outer_lr=1, outer_momentum=0)
DILOCOS = {
    "default": DilocoReducerConfig(),
    "averages each step": AVERAGE,
    "another coordinates": DilocoReducerConfig(
        inner_steps=7, outer_lr=1, outer_momentum=0, coordinator="member-1"
    ),
}


class TestDilocoReducer(ReducerSuite):
    @pytest.fixture(params=DILOCOS)
    @override
    def config(self, request: pytest.FixtureRequest) -> ReducerConfig:
        return DILOCOS[request.param]

    @pytest.fixture
    @override
    def build(self) -> Callable[..., Any]:
        def build(config: DilocoReducerConfig, **parts: Any) -> Any:
            return pparallel.build(config.model_copy(update={"coordinator": None}), **parts)

        return build


@pytest.mark.costly
class TestDilocoReducerAmongProcesses(ReducerSuite):
    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return DilocoReducerConfig(inner_steps=7, outer_lr=1, outer_momentum=0)

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=preloads.MEMBERS)


def step_on_drawn(rt: Runtime, steps: dict[str, int], value: float = 0.5) -> Any:
    """Step on drawn gradients; return the parameters after each step, and at the end."""
    model = begun(rt, numbers(value + rt.rank), lr=0.1)
    found = [values(model)]
    for step in range(steps[rt.name]):
        step_on(rt, model, draw(rt.rank, step))
        found.append(values(model))
    rt.reducer.stop()
    return found, values(model), rt.reducer.counters()


def test_averaging_each_step_is_a_step_on_the_mean_gradient() -> None:
    results = launch(3, AVERAGE, step_on_drawn, {f"member-{rank}": 10 for rank in range(3)})
    expected = torch.full((3, 1), 0.5, dtype=torch.float64)
    for step in range(10):
        expected = expected - 0.1 * sum(draw(rank, step) for rank in range(3)) / 3
        for found, _, _ in results:
            assert found[step + 1] == pytest.approx(expected.flatten().tolist(), rel=1e-12)


@pytest.mark.parametrize("momentum", [0.9, 0.3])
def test_the_outer_step_is_nesterovs(momentum: float) -> None:
    """As torch's optimizer makes it, on how far the members came, four rounds of three steps."""
    config = DilocoReducerConfig(inner_steps=3, outer_momentum=momentum)
    results = launch(3, config, step_on_drawn, {f"member-{rank}": 12 for rank in range(3)})
    outer = nn.Parameter(torch.full((3, 1), 0.5, dtype=torch.float64))
    optimizer = torch.optim.SGD([outer], lr=0.7, momentum=momentum, nesterov=True)
    for first in range(0, 12, 3):
        steps = range(first, first + 3)
        moved = [0.1 * sum(draw(rank, step) for step in steps) for rank in range(3)]
        outer.grad = torch.stack([torch.as_tensor(each) for each in moved]).mean(0)
        optimizer.step()
        for found, _, _ in results:
            assert found[first + 3] == pytest.approx(outer.flatten().tolist(), rel=1e-12)


def test_the_same_steps_give_the_same_bits() -> None:
    """Whoever comes first: the members are averaged in their order."""
    config = DilocoReducerConfig(inner_steps=2)
    steps = {f"member-{rank}": 8 for rank in range(4)}
    first, *others = (launch(4, config, step_on_drawn, steps) for _ in range(3))
    assert all([each[:2] for each in other] == [each[:2] for each in first] for other in others)


def test_the_last_round_takes_the_mean_of_what_was_stepped_since() -> None:
    config = DilocoReducerConfig(inner_steps=4)
    steps = {"a": 6, "b": 5, "c": 4}  # c has made nothing since the first round
    results = launch(list(steps), config, step_on_drawn, steps)
    outer = torch.tensor(results[0][0][4], dtype=torch.float64).view(3, 1)
    a, b = (outer - 0.1 * sum(draw(rank, step) for step in range(4, 6 - rank)) for rank in (0, 1))
    for _, last, counters in results:
        assert last == pytest.approx(((a + b) / 2).flatten().tolist(), rel=1e-12)
        assert counters.lost == 0
    assert [counters.reduced for _, _, counters in results] == [6, 5, 4]


def test_a_member_that_stops_early_holds_nobody_up() -> None:
    config = DilocoReducerConfig(inner_steps=2)
    steps = {"a": 3, "b": 20, "c": 0}
    results = launch(list(steps), config, step_on_drawn, steps)
    assert [last for _, last, _ in results] == [results[0][1]] * 3
    for (_, _, counters), count in zip(results, steps.values(), strict=True):
        assert counters[:5] == (count, count, 0, 0, 0)


def test_half_precision_is_averaged_in_single() -> None:
    """In bfloat16 a sum of so many would be far off."""

    def weights(value: float) -> Weights:
        return Weights({torch.bfloat16: torch.full((4,), value, dtype=torch.bfloat16)}, {})

    outer = Outer(weights(0), 0.7, 0.9)
    outer.step([weights(1)] * 1000, last=True)
    assert outer.weights.trainable[torch.bfloat16].tolist() == [1] * 4


def step_odd(rt: Runtime) -> dict[str, torch.Tensor]:
    model = Odd()
    model.frozen.data += rt.rank
    begun(rt, model)
    model.pass_over(rt.rank)
    rt.reducer.step(model)
    rt.reducer.stop()
    return model.state()


def test_every_dtype_and_shape() -> None:
    for rank, state in enumerate(launch(3, AVERAGE, step_odd)):
        check_a_step(state, rank, mean=1)


# -- what is refused ------------------------------------------------------------------------------


def diverge(rt: Runtime) -> Any:
    model = begun(rt, numbers())
    for value in (1.0, math.nan if rt.name == "b" else 3.0):
        step_on(rt, model, torch.full((3, 1), value, dtype=torch.float64))
    after = values(model)
    rt.reducer.stop()
    return after, rt.reducer.counters()


def test_what_is_not_finite_is_refused_and_the_others_go_on() -> None:
    config = DilocoReducerConfig(inner_steps=2, outer_lr=1, outer_momentum=0)
    a, b, c = launch(["a", "b", "c"], config, diverge)
    assert a[0] == b[0] == c[0] == [-4.0] * 3
    assert a[1][:5] == Counters(pushed=2, reduced=2, refused=2)[:5]
    assert b[1][:5] == Counters(pushed=2, lost=2)[:5]
    assert c[1][:5] == Counters(pushed=2, reduced=2)[:5]


def all_diverge(rt: Runtime) -> Any:
    model = begun(rt, numbers(5.0))
    step_on(rt, model, torch.full((3, 1), math.inf, dtype=torch.float64))
    after = values(model)
    rt.reducer.stop()
    return after


def test_where_nothing_is_finite_all_go_back() -> None:
    assert launch(2, DilocoReducerConfig(inner_steps=1), all_diverge) == [[5.0] * 3] * 2


def start_with_another_model(rt: Runtime) -> None:
    model = line(outputs=2 if rt.name == "b" else 1)
    manage(rt.reducer, model)
    if rt.name == "b":
        with pytest.raises(ValueError, match=r"it has .*'1\.weight'.*\(2, 4\).*the managed has"):
            rt.reducer.start()
        message = "as expected"
        raise KeyError(message)
    rt.reducer.start()


def test_members_with_different_models() -> None:
    with pytest.raises(KeyError, match="as expected"):
        launch(["a", "b"], DilocoReducerConfig(), start_with_another_model)


def push_a_copy(rt: Runtime) -> None:
    begun(rt, numbers())
    copy = numbers()
    next(iter(copy.parameters())).grad = draw(0, 0)
    with pytest.raises(ValueError, match="not the model that was given to manage_model"):
        rt.reducer.push(copy)
    rt.reducer.stop()


def test_only_the_managed_model_is_stepped() -> None:
    launch(2, DilocoReducerConfig(), push_a_copy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"round_timeout": 0}, "round_timeout.*greater than 0"),
        ({"round_timeout": -1}, "round_timeout.*greater than 0"),
        ({"inner_steps": 0}, "inner_steps.*greater than or equal to 1"),
        ({"outer_lr": 0}, "outer_lr.*greater than 0"),
        ({"outer_lr": math.nan}, "outer_lr"),
        ({"outer_momentum": 1}, "outer_momentum.*less than 1"),
        ({"outer_step": 1}, "unknown key 'outer_step'"),
        ({"coordinator": "memer-1"}, "memer-1"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pparallel.launch({"members": 2, "reducer": {"backend": "diloco", **options}}, push_a_copy)


def test_a_coordinator_that_does_not_exist() -> None:
    why = r"reducer\.coordinator: 'bb' is no member; members: a, b\. Did you mean 'b'"
    with pytest.raises(ConfigError, match=why):
        launch(["a", "b"], DilocoReducerConfig(coordinator="bb"), push_a_copy)
