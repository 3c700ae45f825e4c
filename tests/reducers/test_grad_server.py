"""The reducer ``grad_server``: what is reduced, who manages, and bad input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from reducer_models import Odd, begun, check_a_step, launch, one_weight, weight
from torch import nn
from typing_extensions import override

import pparallel
from pparallel.errors import ConfigError
from pparallel.interfaces.reducer import Counters, ReducerConfig
from pparallel.testing import ReducerSuite
from pparallel.testing.reducer import backward, line, manage, parameters
from pparallel.testing.reducer.together import TogetherTests
from pparallel_reducers import GradServerReducerConfig

if TYPE_CHECKING:
    from pparallel.builder import Runtime


GRAD_SERVERS = {
    "batches": GradServerReducerConfig(reduce_batch_size=2, max_queue_size=3),
    "bounded": GradServerReducerConfig(
        secondaries=("member-0", "member-2"), reduce_batch_size=2, max_staleness=1000
    ),
    "all take part": GradServerReducerConfig(
        primary="member-1",
        secondaries=("member-0", "member-1", "member-2"),
        dedicated=False,
        reduce_batch_size=2,
    ),
}


class TestGradServerReducer(ReducerSuite):
    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return GradServerReducerConfig()


class TestGradServerRoles(TogetherTests):
    @pytest.fixture(params=GRAD_SERVERS)
    @override
    def config(self, request: pytest.FixtureRequest) -> ReducerConfig:
        return GRAD_SERVERS[request.param]


# -- what is reduced ------------------------------------------------------------------------------


def push_values(rt: Runtime, values: dict[str, list[float]]) -> tuple[float, Counters]:
    """Push gradients of given values, and return what the weight becomes under lr = 1."""
    reducer, model = rt.reducer, one_weight()
    begun(rt, model)
    reducer.pull(model)
    for value in values.get(rt.name, []):
        next(iter(model.parameters())).grad = torch.tensor([[value]])
        reducer.push(model)
    reducer.stop()
    return weight(model), reducer.counters()


def test_one_step_over_all_that_two_clients_push_twice() -> None:
    config = GradServerReducerConfig(reduce_batch_size=2)
    values = {"a": [1.0, 3.0], "b": [5.0, 8.0]}
    results = launch(["ps", "a", "b"], config, push_values, values)
    assert [each for each, _ in results] == [-(1.0 + 3.0 + 5.0 + 8.0) / 4] * 3
    assert [counters.reduced for _, counters in results] == [4, 0, 0]
    assert [counters.pushed for _, counters in results] == [0, 2, 2]


@pytest.mark.parametrize(("method", "expected"), [("mean", -18.0 / 4), ("sum", -18.0)])
def test_a_mean_of_means_is_weighted_by_counts(method: Any, expected: float) -> None:
    """One secondary sums three gradients, the other one: the mean is that of all four."""
    config = GradServerReducerConfig(
        secondaries=("s", "t"), reduce_batch_size=10, reduce_method=method
    )
    values = {"s": [8.0], "t": [1.0, 4.0, 5.0]}
    results = launch(["ps", "t", "s"], config, push_values, values)
    assert [each for each, _ in results] == [expected] * 3


def test_a_full_batch_steps_before_the_end() -> None:
    config = GradServerReducerConfig(reduce_batch_size=1)
    results = launch(["ps", "a"], config, push_values, {"a": [1.0] * 5})
    assert results[0][0] == -5.0
    assert results[0][1].reduced == 5
    # The first is computed on the version published at the start, and never pulled again.
    assert results[0][1].staleness == (0 + 1 + 2 + 3 + 4) / 5


def push_odd(rt: Runtime) -> dict[str, torch.Tensor]:
    reducer, model = rt.reducer, Odd()
    begun(rt, model)
    if reducer.trains:
        model.pass_over(rt.rank)
        reducer.push(model)
    reducer.stop()
    return model.state()


def test_every_dtype_and_shape() -> None:
    config = GradServerReducerConfig(reduce_batch_size=2, secondaries=("b",))
    results = launch(["ps", "a", "b"], config, push_odd)
    for rank, state in enumerate(results):
        check_a_step(state, rank, mean=1.5)


# -- the managed model ----------------------------------------------------------------------------


def test_leaving_without_stop_is_said(caplog: pytest.LogCaptureFixture) -> None:
    config: Any = GradServerReducerConfig(reduce_batch_size=10)
    with pparallel.build(pparallel.RuntimeConfig(reducer=config)) as rt:
        model = one_weight()
        manage_here(rt, model)
        rt.reducer.start()
        for _ in range(3):
            next(iter(model.parameters())).grad = torch.ones(1, 1)
            rt.reducer.push(model)
    assert "left with 3 acknowledged gradients: they are not reduced, for stop()" in caplog.text


def test_a_start_that_fails_hands_the_optimizer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with pparallel.build() as rt:
        model = one_weight()
        manage_here(rt, model, lr=1.0)
        with monkeypatch.context() as patched:
            patched.setattr(rt.ordered_server, "push", lambda *_: False)
            with pytest.raises(RuntimeError, match="refused version 0"):
                rt.reducer.start()
        rt.reducer.start()
        next(iter(model.parameters())).grad = torch.ones(1, 1)
        rt.reducer.push(model)
        rt.reducer.stop()
        assert weight(model) == -1.0


def test_a_member_may_train_another_copy_than_it_manages() -> None:
    with pparallel.build() as rt:
        managed, trained = one_weight(), one_weight()
        manage_here(rt, managed, lr=1.0)
        rt.reducer.start()
        next(iter(trained.parameters())).grad = torch.ones(1, 1)
        rt.reducer.push(trained)
        rt.reducer.stop()
        assert weight(managed) == weight(trained) == -1.0


def test_a_second_start_is_not_behind() -> None:
    with pparallel.build() as rt:
        model = one_weight()
        manage_here(rt, model)
        for _ in range(2):
            rt.reducer.start()
            next(iter(model.parameters())).grad = torch.ones(1, 1)
            rt.reducer.push(model)
            rt.reducer.stop()
        assert rt.reducer.counters() == Counters(pushed=2, reduced=2)


# -- bad input ------------------------------------------------------------------------------------


def enter(rt: Runtime) -> bool:
    return rt.reducer.manages


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"primary": "pss"}, r"reducer\.primary: 'pss' is no member.*Did you mean 'ps'"),
        ({"secondaries": ("ps", "worker")}, r"reducer\.secondaries: 'worker' is no member"),
    ],
)
def test_members_that_do_not_exist(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        launch(["ps", "a"], GradServerReducerConfig(**options), enter)


def roles(rt: Runtime) -> tuple[bool, bool]:
    model = line()
    if not rt.reducer.manages:
        with pytest.raises(RuntimeError, match="'b' does not manage the model, 'a' does"):
            manage_here(rt, model)
    return rt.reducer.manages, rt.reducer.trains


def manage_here(rt: Runtime, model: nn.Module, lr: float = 0.1) -> None:
    rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=lr))


def test_who_manages_and_who_trains() -> None:
    assert launch(["a", "b"], GradServerReducerConfig(), roles) == [(True, False), (False, True)]
    shares = GradServerReducerConfig(dedicated=False)
    assert launch(["a", "b"], shares, roles) == [(True, True), (False, True)]
    assert launch(["a"], GradServerReducerConfig(), roles) == [(True, True)]


def test_managing_twice_and_late() -> None:
    with pparallel.build() as rt:
        manage_here(rt, line())
        manage_here(rt, line(1))
        rt.reducer.start()
        with pytest.raises(RuntimeError, match="comes before start"):
            manage_here(rt, line())
        rt.reducer.stop()


def test_a_reducer_with_a_server_of_its_own() -> None:
    config = pparallel.load(
        {"reducer": {"backend": "grad_server", "ordered_server": {"backend": "hosted"}}}
    )
    with pparallel.build(config) as rt:
        model = line()
        manage(rt.reducer, model)
        rt.reducer.start()
        backward(model, 1)
        rt.reducer.step(model)
        rt.reducer.stop()
        assert parameters(model) != parameters(line())
        assert rt.ordered_server.keys() == []
