"""The reducer ``diloco``."""

from __future__ import annotations

import math
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
from pparallel.testing.reducer.together import TogetherTests
from pparallel_process import ProcessLauncherConfig
from pparallel_reducers import DilocoReducerConfig
from pparallel_reducers.diloco.outer import Outer, OuterState
from pparallel_reducers.diloco.weights import Weights

if TYPE_CHECKING:
    from pparallel.builder import Runtime


AVERAGE = DilocoReducerConfig(inner_steps=1, outer_lr=1, outer_momentum=0)
DILOCOS = {
    "default": DilocoReducerConfig(),
    "another coordinates": DilocoReducerConfig(
        inner_steps=7, outer_lr=1, outer_momentum=0, coordinator="member-1"
    ),
}


class TestDilocoReducer(ReducerSuite):
    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return AVERAGE


class TestDilocoReducerTogether(TogetherTests):
    @pytest.fixture(params=DILOCOS)
    @override
    def config(self, request: pytest.FixtureRequest) -> ReducerConfig:
        return DILOCOS[request.param]


class TestDilocoReducerAmongProcesses(TogetherTests):
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


def weights(value: float, *buffers: float, dtype: torch.dtype = torch.float32) -> Weights:
    """Return four parameters of *value*, and *buffers*."""
    found = {torch.float32: torch.tensor(buffers)} if buffers else {}
    return Weights({dtype: torch.full((4,), value, dtype=dtype)}, found)


def averaged(parts: list[Weights]) -> Weights:
    outer = Outer(OuterState.of(parts[0], 0), 0.7, 0.9)
    outer.step(parts, last=True)
    return outer.state.weights


def test_half_precision_is_averaged_in_single() -> None:
    """In bfloat16 a sum of so many would be far off."""
    found = averaged([weights(1, dtype=torch.bfloat16)] * 1000)
    assert found.trainable[torch.bfloat16].tolist() == [1] * 4


@pytest.mark.parametrize("members", [1, 2, 3, 7, 64])
def test_masks_stay_as_they_are(members: int) -> None:
    """Of infinity, and of the smallest number, of which two added up are out of range."""
    mask = [0.0, -math.inf, math.inf, torch.finfo(torch.float32).min]
    found = averaged([weights(1, *mask)] * members)
    assert found.buffers[torch.float32].tolist() == mask


def test_half_precision_is_averaged_beyond_its_range() -> None:
    parts = [weights(value, dtype=torch.float16) for value in (60032, 40000)]
    assert averaged(parts).trainable[torch.float16].tolist() == [50016] * 4


def move_by_small_steps(rt: Runtime, dtype: torch.dtype, rounds: int) -> float:
    """Step by one unit in the last place of bfloat16 in each round; return how far it came."""
    model = nn.Linear(1, 1, bias=False, dtype=dtype)
    nn.init.ones_(model.weight)
    begun(rt, model, lr=1.0)
    for _ in range(rounds):
        model.weight.grad = torch.full((1, 1), 2.0**-8, dtype=dtype)
        rt.reducer.step(model)
    rt.reducer.stop()
    return 1 - model.weight.item()


@pytest.mark.parametrize("compression", [None, {"kind": "topk", "ratio": 0.5}])
@pytest.mark.parametrize("members", [1, 2])
def test_small_outer_steps_add_up_in_half_precision(
    members: int, compression: dict[str, Any] | None
) -> None:
    """Each is a third of what the parameters can be told apart by."""
    raw = {"inner_steps": 1, "outer_lr": 0.3, "outer_momentum": 0, "compression": compression}
    config = DilocoReducerConfig.model_validate({"backend": "diloco", **raw})
    half, single = (
        launch(members, config, move_by_small_steps, dtype, 40)
        for dtype in (torch.bfloat16, torch.float32)
    )
    assert single == [pytest.approx(40 * 0.3 * 2**-8, abs=1e-6)] * members
    assert half == [pytest.approx(single[0], abs=2**-8)] * members


class Masked(nn.Module):
    """A number, a causal mask that is saved with it, and a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.mask: torch.Tensor
        self.mean: torch.Tensor
        self.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
        self.register_buffer("mean", torch.zeros(()))


def train_masked(rt: Runtime) -> tuple[float, torch.Tensor]:
    model = begun(rt, Masked())
    for _ in range(4):
        model.weight.grad = torch.ones(()) * (1 + rt.rank)
        rt.reducer.step(model)
    rt.reducer.stop()
    counters = rt.reducer.counters()
    assert counters[:5] == (4, 4, 0, 0, 0)
    return model.weight.item(), model.mask


@pytest.mark.parametrize("refuse_nan", [True, False])
def test_a_mask_of_infinities_keeps_nobody_from_training(refuse_nan: bool) -> None:
    config = DilocoReducerConfig(inner_steps=2, outer_lr=1, outer_momentum=0, refuse_nan=refuse_nan)
    for weight, mask in launch(2, config, train_masked):
        assert weight == 1 - 4 * 1.5
        assert torch.equal(mask, Masked().mask)


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


def test_what_is_not_finite_is_refused_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = DilocoReducerConfig(inner_steps=2, outer_lr=1, outer_momentum=0)
    a, b, c = launch(["a", "b", "c"], config, diverge)
    why = "parameter 'weight' is not finite. Set 'refuse_nan', clip the gradients"
    assert f"a-reducer-coordinator goes on without 2 steps of b: {why}" in caplog.text
    assert f"b lost 2 steps, and goes on from the outer parameters: {why}" in caplog.text
    assert {each.levelname for each in caplog.records if why in each.message} == {"WARNING"}
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


def stop_without_a_layer(rt: Runtime) -> Any:
    """One member takes a layer away in the middle of a round, and stops as it is told to."""
    model = begun(rt, nn.Sequential(numbers(), numbers()))
    for each in model.parameters():
        each.grad = torch.ones(3, 1, dtype=torch.float64)
    assert rt.reducer.push(model)
    if rt.name == "b":
        del model[1]
        with pytest.raises(ValueError, match=r"'1\.weight' was removed .* call stop\(\) first"):
            rt.reducer.push(model)
        with pytest.raises(
            ValueError, match=r"no longer has trainable '1\.weight' .* stop\(\) before"
        ):
            rt.reducer.stop()
    else:
        rt.reducer.stop()
    return next(iter(model.parameters()))[0].item(), rt.reducer.counters()


def test_a_member_whose_model_changed_stops_without_its_steps() -> None:
    b, a = launch(["b", "a"], DilocoReducerConfig(coordinator="a"), stop_without_a_layer)
    assert a[0] == -1
    assert a[1][:5] == Counters(pushed=1, reduced=1, refused=1)[:5]
    assert b[1][:5] == Counters(pushed=1, lost=1)[:5]


def skip_one(rt: Runtime) -> Any:
    """Every member makes four pushes, of which one member's second is refused."""
    model, found = begun(rt, numbers(), lr=1.0), []
    for push in range(4):
        bad = rt.name == "b" and push == 1
        model.weight.grad = torch.full((3, 1), math.inf if bad else 1.0, dtype=torch.float64)
        assert rt.reducer.push(model) is not bad
        assert next(iter(model.parameters())).grad is None
        assert rt.reducer.pull(model) is (push % 2 == 1)
        found.append(values(model)[0])
    rt.reducer.stop()
    return found, rt.reducer.counters()


def test_refused_gradients_are_not_stepped_on_and_members_stay_in_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = DilocoReducerConfig(inner_steps=2, outer_lr=1, outer_momentum=0, refuse_nan=True)
    a, b = launch(["a", "b"], config, skip_one)
    # In the first round a makes two steps and b one.
    assert a[0] == [-1, -1.5, -2.5, -3.5]
    assert b[0] == [-1, -1.5, -2.5, -3.5]
    assert a[1][:5] == Counters(pushed=4, reduced=4)[:5]
    assert b[1][:5] == Counters(pushed=3, reduced=3, refused=1)[:5]
    assert "b: a step is refused (refuse_nan): the gradient of 'weight' is not fin" in caplog.text


def test_a_round_in_which_all_was_refused_is_over() -> None:
    config = DilocoReducerConfig(inner_steps=1, outer_lr=1, outer_momentum=0, refuse_nan=True)
    for found, counters in launch(2, config, skip_all):
        assert found == [5.0, 4.0]
        assert counters[:5] == Counters(pushed=1, reduced=1, refused=1)[:5]


def skip_all(rt: Runtime) -> Any:
    model, found = begun(rt, numbers(5.0)), []
    for value in (math.nan, 1.0):
        model.weight.grad = torch.full((3, 1), value, dtype=torch.float64)
        rt.reducer.step(model)
        found.append(values(model)[0])
    rt.reducer.stop()
    return found, rt.reducer.counters()


def lose_the_running_mean(rt: Runtime) -> tuple[list[bool], float, float]:
    """One member's running mean becomes NaN in the first of two rounds of two steps."""
    model, accepted = begun(rt, Masked()), []
    for push in range(4):
        model.weight.grad = torch.ones(())
        model.mean += math.nan if rt.name == "b" and push == 1 else 1.0
        accepted.append(rt.reducer.push(model))
        rt.reducer.pull(model)
    rt.reducer.stop()
    return accepted, model.weight.item(), model.mean.item()


def test_a_running_mean_of_nan_is_refused_and_taken_from_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = DilocoReducerConfig(inner_steps=2, outer_lr=1, outer_momentum=0, refuse_nan=True)
    a, b = launch(["a", "b"], config, lose_the_running_mean)
    assert a[0] == [True] * 4
    assert b[0] == [True, False, True, True]
    assert a[1:] == b[1:] == (1 - 4, 4), "the round of b counted, or its mean"
    assert "b: a step is refused (refuse_nan): buffer 'mean' holds NaN" in caplog.text
    assert "goes on without 1 steps of b: buffer 'mean' holds NaN" in caplog.text


def step_sparse(rt: Runtime) -> Any:
    """Train an embedding, and a weight of the loss that is no parameter of the model."""
    model, scale = nn.Embedding(5, 2, sparse=True), nn.Parameter(torch.ones(()))
    nn.init.zeros_(model.weight)
    optimizer: torch.optim.Optimizer = torch.optim.SparseAdam(model.parameters(), lr=1.0)
    if rt.rank:
        optimizer = torch.optim.SGD([*model.parameters(), scale], lr=1.0)
    begun(rt, model, optimizer)
    model(torch.tensor([1, 1])).sum().mul(scale).backward()
    rt.reducer.step(model)
    rt.reducer.stop()
    assert not any(each.grad for group in optimizer.param_groups for each in group["params"])
    return [round(each, 4) for each in model.weight.sum(1).tolist()], rt.reducer.counters()


def test_sparse_gradients_stay_sparse_and_other_parameters_a_members_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def to_dense(*_: object) -> None:
        pytest.fail("a dense copy of a gradient was made")

    monkeypatch.setattr(torch.Tensor, "to_dense", to_dense)
    config = DilocoReducerConfig(inner_steps=1, outer_lr=1, outer_momentum=0, refuse_nan=True)
    for found, counters in launch(2, config, step_sparse):
        assert found == [0, -3, 0, 0, 0]  # (2 * 1 + 2 * 2) / 2
        assert counters[:5] == Counters(pushed=1, reduced=1)[:5]
    (warning,) = [each for each in caplog.records if "no" in each.message]
    assert "member-1: optimizer.param_groups[0]['params'][1] is not a parameter" in warning.message


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
        ({"inner_steps": 0}, "inner_steps.*at least 1"),
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
