"""The reducer ``model_server``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import preloads
import pytest
import torch
from crew import crew
from reducer_models import begun, launch, numbers, values
from torch import nn
from typing_extensions import override

import pparallel
from pparallel.errors import ConfigError, PeerLostError
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.reducer import Counters, ReducerConfig
from pparallel.runtime.events import GradientsRefused, Reduced
from pparallel.testing import ReducerSuite
from pparallel.testing.reducer import line, manage
from pparallel.testing.reducer.together import TogetherTests
from pparallel_process import ProcessLauncherConfig
from pparallel_reducers import ModelServerReducerConfig

if TYPE_CHECKING:
    from pparallel.builder import Runtime


class TestModelServerReducer(ReducerSuite):
    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return ModelServerReducerConfig()


class TestModelServerReducerAmongProcesses(TogetherTests):
    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return ModelServerReducerConfig()

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=preloads.MEMBERS)


def ones(value: float = 1.0) -> torch.Tensor:
    return torch.full((3, 1), value, dtype=torch.float64)


# -- races ----------------------------------------------------------------------------------------


def push_in_a_race(rt: Runtime, count: int) -> Any:
    """Every member pushes as fast as it can: powers of two, which add up exactly."""
    model, versions = numbers(value=5.0 * rt.rank), list[int]()
    rt.events.subscribe(lambda event: versions.append(event.version), Reduced)  # type: ignore[attr-defined]
    begun(rt, model)
    for _ in range(count):
        model.weight.grad = ones(-(2.0 ** (10 * rt.rank)))
        assert rt.reducer.push(model)
    rt.reducer.stop()
    return values(model), versions, rt.reducer.counters()


def test_steps_that_race_all_count() -> None:
    results = launch(4, ModelServerReducerConfig(), push_in_a_race, 50)
    total = 50.0 * sum(2.0 ** (10 * rank) for rank in range(4))
    versions = [each for _, told, _ in results for each in told]
    assert sorted(versions) == list(range(1, 201)), "each step is one version"
    for last, _, counters in results:
        assert last == [total] * 3, "all begin with the parameters of the first"
        assert counters[:5] == (50, 50, 0, 0, 0)
    assert sum(each.staleness for _, _, each in results) > 0


class Pulls(nn.Module):
    """Parameters and buffers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.short = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.turned = nn.Parameter(torch.arange(6.0).view(2, 3).T)
        self.frozen = nn.Parameter(torch.full((2,), 7.0), requires_grad=False)
        self.variance: torch.Tensor
        self.count: torch.Tensor
        self.cache: torch.Tensor
        self.register_buffer("variance", torch.ones(2))
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(1), persistent=False)


def push_second(rt: Runtime) -> dict[str, torch.Tensor]:
    """The second member's push is based on what was before the first member's."""
    model = Pulls()
    model.frozen.data += rt.rank
    rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    rt.reducer.start()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    if rt.rank == 1:
        rt.group().barrier()
    model.variance.fill_(0.5 if rt.rank else 0.25)
    model.count += 1 + rt.rank
    model.cache += rt.rank
    assert rt.reducer.push(model)
    if rt.rank == 0:
        rt.group().barrier()
    rt.reducer.stop()
    assert rt.reducer.counters().staleness == rt.rank
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def test_a_step_is_put_onto_the_newest_parameters() -> None:
    for rank, state in enumerate(launch(2, ModelServerReducerConfig(), push_second)):
        assert state["short"].tolist() == [-1] * 3
        assert state["turned"].tolist() == [[-2, 1], [-1, 2], [0, 3]]
        assert state["frozen"].tolist() == [7, 7]
        assert state["variance"].tolist() == [0.375] * 2, "running means are averaged"
        assert state["count"].tolist() == [2, 2]
        assert state["cache"].item() == rank, "a buffer that is not persistent was touched"


def lose_a_race(rt: Runtime) -> tuple[Any, ...]:
    model, told = numbers(), list[GradientsRefused]()
    rt.events.subscribe(told.append, GradientsRefused)  # type: ignore[arg-type]
    begun(rt, model)
    model.weight.grad = ones()
    if rt.rank == 0:
        rt.reducer.push(model)
        rt.group().barrier()
        rt.reducer.stop()
        return values(model), rt.reducer.counters()
    rt.group().barrier()
    found = []
    for _ in range(2):
        model.weight.grad = ones(10.0)
        found.append((rt.reducer.push(model), values(model)[0]))
        assert next(iter(model.parameters())).grad is None, "it would be stepped on again"
    found.append((rt.reducer.pull(model), values(model)[0]))
    rt.reducer.stop()
    reasons = [(each.reason, each.sender, each.late) for each in told]
    return found, values(model), rt.reducer.counters(), reasons


@pytest.mark.parametrize("pull", [True, False])
def test_without_rebase_who_comes_second_is_refused(pull: bool) -> None:
    config = ModelServerReducerConfig(rebase=False, pull_on_fail=pull)
    (first, _), (found, last, counters, reasons) = launch(2, config, lose_a_race)
    why = ("another member was first to push version 1", "member-1", False)
    if pull:
        assert found == [(False, -1.0), (True, -11.0), (False, -11.0)]
        assert counters[:5] == Counters(pushed=1, reduced=1, refused=1)[:5]
        assert reasons == [why]
    else:
        assert found == [(False, -10.0), (False, -20.0), (True, -1.0)]
        assert counters[:5] == Counters(refused=2)[:5]
        assert reasons == [why] * 2
    assert first == last == [-11.0 if pull else -1.0] * 3


def step_in_turns(rt: Runtime) -> list[tuple[bool, float]]:
    """Each says whether its step changed the parameters; the last gradients are refused."""
    model, found = begun(rt, numbers()), []
    for value in (1.0, 1.0, math.nan):
        model.weight.grad = ones(value)
        for rank in range(2):
            if rank == rt.rank:
                found.append((rt.reducer.step(model), values(model)[0]))
            rt.group().barrier()
    rt.reducer.stop()
    return found


@pytest.mark.parametrize("pull", [True, False])
def test_a_step_says_whether_the_parameters_changed(pull: bool) -> None:
    config = ModelServerReducerConfig(rebase=False, pull_on_fail=pull, refuse_nan=True)
    first, second = launch(2, config, step_in_turns)
    assert first == second == [(True, -1.0), (True, -2.0), (False, -2.0)]


def train_with_adam(rt: Runtime) -> Any:
    model = numbers(value=1.0)
    begun(rt, model, torch.optim.Adam(model.parameters(), lr=0.05))
    for _ in range(100):
        model.weight.square().sum().backward()
        rt.reducer.step(model)
    rt.reducer.stop()
    return values(model)


def test_each_member_has_moments_of_its_own() -> None:
    results = launch(3, ModelServerReducerConfig(), train_with_adam)
    assert results == [results[0]] * 3
    assert max(map(abs, results[0])) < 0.5


# -- what is refused, and what fails --------------------------------------------------------------


def push_nan(rt: Runtime, refuse: bool) -> Counters:
    model = numbers()
    begun(rt, model)
    model.weight.grad = ones(math.nan)
    assert rt.reducer.push(model) is not refuse
    assert next(iter(model.parameters())).grad is None
    assert math.isnan(values(model)[0]) is not refuse
    rt.reducer.stop()
    return rt.reducer.counters()


@pytest.mark.parametrize("refuse", [True, False])
def test_gradients_that_are_not_finite(refuse: bool) -> None:
    with pparallel.build({"reducer": {"backend": "model_server", "refuse_nan": refuse}}) as rt:
        counters = push_nan(rt, refuse)
        expected = Counters(refused=1) if refuse else Counters(pushed=1, reduced=1)
        assert counters == expected


def start_with_another_model(rt: Runtime) -> None:
    manage(rt.reducer, line(outputs=2 if rt.rank else 1))
    if rt.rank:
        with pytest.raises(ValueError, match=r"it has .*'1\.weight'.*\(2, 4\).*the managed has"):
            rt.reducer.start()
        message = "as expected"
        raise KeyError(message)
    rt.reducer.start()


def test_members_with_different_models() -> None:
    with pytest.raises(KeyError, match="as expected"):
        launch(2, ModelServerReducerConfig(), start_with_another_model)


def stop_without_a_layer(rt: Runtime) -> float:
    model = begun(rt, nn.Sequential(numbers(), numbers()))
    for each in model.parameters():
        each.grad = ones()
    assert rt.reducer.push(model)
    if rt.rank:
        del model[1]
        with pytest.raises(
            ValueError, match=r"no longer has trainable '1\.weight' .* stop\(\) before"
        ):
            rt.reducer.stop()
    else:
        rt.reducer.stop()
    return float(next(iter(model.parameters())).detach()[0])


def test_a_member_whose_model_changed_holds_nobody_up() -> None:
    assert launch(2, ModelServerReducerConfig(), stop_without_a_layer)[0] == -2


def push_a_copy(rt: Runtime) -> None:
    begun(rt, numbers())
    copy = numbers()
    copy.weight.grad = ones()
    with pytest.raises(ValueError, match="not the model that was given to manage_model"):
        rt.reducer.push(copy)
    rt.reducer.stop()


def test_only_the_managed_model_is_stepped() -> None:
    launch(2, ModelServerReducerConfig(), push_a_copy)


def outlive_the_server(rt: Runtime) -> Any:
    model = numbers()
    begun(rt, model)
    rt.group().barrier()
    if rt.name == "host":
        return None
    before = values(model)

    def push_without_end() -> None:
        while True:
            before[:] = values(model)
            model.weight.grad = ones()
            rt.reducer.push(model)

    with pytest.raises(PeerLostError, match="'host'"):
        push_without_end()
    assert model.weight.grad is not None, "a push that failed took gradients"
    assert values(model) == before
    return rt.reducer.counters()


def test_a_push_that_fails_takes_nothing() -> None:
    members = ["a", {"name": "host", "override": {"close_timeout": 0.05}}]
    server: Any = {"backend": "hosted", "host": "host"}
    config: Any = {"backend": "model_server", "ordered_server": server}
    job = pparallel.RuntimeConfig(members=members, reducer=config)
    counters, _ = pparallel.launch(job, outlive_the_server)
    assert counters.pushed == counters.reduced
    assert counters[2:5] == (0, 0, 0)


def delete_the_parameters(rt: Runtime) -> None:
    model = numbers()
    begun(rt, model)
    for key in rt.ordered_server.keys():  # noqa: SIM118 - no mapping
        rt.ordered_server.delete(key)
    with pytest.raises(RuntimeError, match="holds no 'reducer/reducer/model' any more"):
        rt.reducer.pull(model)


def test_parameters_that_were_deleted() -> None:
    with pparallel.build({"reducer": {"backend": "model_server"}}) as rt:
        delete_the_parameters(rt)


def test_unknown_options() -> None:
    with pytest.raises(ConfigError, match=r"'rebased'.*rebase"):
        pparallel.load({"reducer": {"backend": "model_server", "rebased": True}})


@pytest.mark.parametrize("backend", ["ipc", "zmq"])
def test_a_killed_member_holds_nobody_up(tmp_path: Path, backend: str) -> None:
    with crew(tmp_path, {"backend": backend}) as members:
        program = "diloco_programs:step_with_one_that_dies"
        for name in "abc":
            reducer = {"backend": "model_server"}
            members.start(name, program, members.note("steps"), 1, reducer=reducer)
        members.noted("steps")
        members.kill("c")
        members.note("steps over").touch()
        a, b = members.answer("a"), members.answer("b")
        assert not any(members.outcome(name).error for name in "ab")
    assert a[0] == b[0] == -(4 * 1 + 4 * 2 + 3)
    assert a[1][:5] == b[1][:5] == [4, 4, 0, 0, 0]
