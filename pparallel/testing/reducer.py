"""ReducerSuite: what every reducer promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import pparallel
from pparallel.errors import ClosedError
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.reducer import Counters, Reducer, ReducerConfig
from pparallel.testing.suite import Suite, requires

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pparallel.builder import Runtime

MEMBERS = 3
STEPS = 20


def line(seed: int = 0) -> nn.Module:
    """Return a small model, the same for the same seed: two layers, three inputs, one output."""
    import torch

    random = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=random) - 0.5)
    return model


def parameters(model: nn.Module) -> list[list[float]]:
    """Return the parameters as plain numbers."""
    return [each.detach().flatten().tolist() for each in model.parameters()]


def backward(model: nn.Module, seed: int, target: float = 0.0) -> Tensor:
    """Compute gradients on a batch, the same for the same seed, and return the loss."""
    import torch

    batch = torch.rand(8, 3, generator=torch.Generator().manual_seed(seed))
    loss: Tensor = (model(batch) - target).square().mean()
    loss.backward()
    return loss


def manage(reducer: Reducer, model: nn.Module, lr: float = 0.1) -> None:
    """Let *reducer* step *model* with plain gradient descent, where it manages."""
    import torch

    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=lr))


def train(
    rt: Runtime, reducer: Reducer, target: float, seed: int
) -> tuple[nn.Module, float, Counters]:
    """Train towards *target*; return the model, its loss, and the counters."""
    model = line(seed + rt.rank)
    manage(reducer, model, lr=0.05)
    reducer.start()
    reducer.pull(model)
    if reducer.trains:
        for step in range(STEPS):
            backward(model, step * rt.world_size + rt.rank, target)
            reducer.step(model)
    reducer.stop()
    reducer.watch()
    return model, float(backward(model, 0, target).detach()), reducer.counters()


def train_as_member(rt: Runtime) -> tuple[list[list[float]], Counters, bool]:
    model, _, counters = train(rt, rt.reducer, 1.0, 0)
    return parameters(model), counters, rt.reducer.trains


def train_two(rt: Runtime) -> tuple[Any, Any]:
    _, actors_loss, _ = train(rt, rt.reducer, 1.0, 0)
    critic, critics_loss, _ = train(rt, rt["critic"], -1.0, 50)
    again, agains_loss, _ = train(rt, rt.reducer, 1.0, 0)
    assert max(actors_loss, agains_loss) < 0.5, "the actor was not trained towards 1"
    assert critics_loss < 0.5, "the critic was not trained towards -1"
    return parameters(again), parameters(critic)


def train_two_at_once(rt: Runtime) -> tuple[Any, Any]:
    reducers = {1.0: rt.reducer, -1.0: rt["critic"]}
    models = {target: line(int(target)) for target in reducers}
    for target, reducer in reducers.items():
        manage(reducer, models[target], lr=0.05)
        reducer.start()
        reducer.pull(models[target])
    for step in range(STEPS):
        for target, reducer in reducers.items():
            if reducer.trains:
                backward(models[target], step, target)
                reducer.step(models[target])
    for reducer in reducers.values():
        reducer.stop()
    losses = [float(backward(model, 0, target).detach()) for target, model in models.items()]
    assert max(losses) < 0.5, "what one reducer learnt went into the other's model"
    return parameters(models[1.0]), parameters(models[-1.0])


def manage_everywhere(rt: Runtime) -> str:
    model = line()
    if rt.reducer.manages:
        manage(rt.reducer, model)
        return "managed"
    import torch

    with pytest.raises(RuntimeError, match="manage_model"):
        rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return "refused"


class ReducerSuite(Suite):
    """Subclass it, and give a fixture ``config``: the reducer's config.

    Members are started by the fixture ``launcher``; override it where members that use this reducer
    cannot be threads.
    """

    interface: ClassVar[str] = "reducer"

    @pytest.fixture
    def reducer(self, config: ReducerConfig, build: Callable[..., Reducer]) -> Iterator[Reducer]:
        """The reducer of a member that is alone."""
        with build(config) as reducer:
            yield reducer

    def launch(
        self,
        launcher: LauncherConfig,
        config: ReducerConfig,
        target: Callable[..., Any],
        **extra: ReducerConfig,
    ) -> list[Any]:
        """Run *target* in members that have the reducer, and *extra* ones."""
        parts: dict[str, Any] = {"launcher": launcher, "reducer": config}
        job = pparallel.RuntimeConfig(members=MEMBERS, extra=dict(extra), **parts)
        return pparallel.launch(job, target)

    # -- alone --------------------------------------------------------------------------------

    def test_one_step_is_the_optimizers_step(self, reducer: Reducer) -> None:
        import torch

        model, reference = line(), line()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        reducer.manage_model(model, optimizer, scheduler)
        reducer.start()
        backward(model, 1)
        reducer.step(model)
        reducer.stop()
        expected = torch.optim.Adam(reference.parameters(), lr=0.1)
        backward(reference, 1)
        expected.step()
        assert parameters(model) == parameters(reference)
        assert scheduler.get_last_lr() == [0.05]
        assert all(each in optimizer.state for each in model.parameters())

    def test_gradients_are_cleared(self, reducer: Reducer) -> None:
        model = line()
        manage(reducer, model)
        reducer.start()
        backward(model, 1)
        assert reducer.push(model)
        assert all(each.grad is None for each in model.parameters())
        reducer.stop()

    def test_gradients_accumulate(self, reducer: Reducer) -> None:
        import torch

        model, reference = line(), line()
        manage(reducer, model)
        reducer.start()
        for each in (model, reference):
            backward(each, 1)
            backward(each, 2)
        reducer.step(model)
        reducer.stop()
        torch.optim.SGD(reference.parameters(), lr=0.1).step()
        assert parameters(model) == parameters(reference)

    def test_a_parameter_without_gradient_is_named(self, reducer: Reducer) -> None:
        model = line()
        manage(reducer, model)
        reducer.start()
        before = parameters(model)
        with pytest.raises(ValueError, match=r"'0\.weight' has no gradient.*backward"):
            reducer.step(model)
        backward(model, 1)
        next(iter(model[1].parameters())).grad = None  # type: ignore[index]
        with pytest.raises(ValueError, match=r"'1\.weight' has no gradient.*requires_grad_"):
            reducer.push(model)
        assert next(iter(model.parameters())).grad is not None, "a refused push took gradients"
        reducer.stop()
        assert parameters(model) == before

    def test_frozen_parameters_stay(self, reducer: Reducer) -> None:
        model = line()
        model[0].requires_grad_(False)  # type: ignore[index]
        frozen = parameters(model)[:2]
        trained = parameters(model)[2:]
        manage(reducer, model)
        reducer.start()
        backward(model, 1)
        reducer.step(model)
        reducer.stop()
        assert parameters(model)[:2] == frozen
        assert parameters(model)[2:] != trained

    def test_push_outside_start_and_stop(self, reducer: Reducer) -> None:
        model = line()
        manage(reducer, model)
        backward(model, 1)
        with pytest.raises(ClosedError, match="start"):
            reducer.push(model)
        reducer.start()
        reducer.stop()
        with pytest.raises(ClosedError, match="start"):
            reducer.push(model)
        assert reducer.counters().pushed == 0

    def test_start_without_a_model(self, reducer: Reducer) -> None:
        assert reducer.manages
        with pytest.raises(RuntimeError, match="manage_model"):
            reducer.start()

    def test_stop_twice(self, reducer: Reducer) -> None:
        reducer.stop()
        manage(reducer, line())
        reducer.start()
        reducer.stop()
        reducer.stop()
        reducer.watch()
        assert reducer.counters() == Counters()

    def test_start_again(self, reducer: Reducer) -> None:
        import torch

        model, reference = line(), line()
        manage(reducer, model)
        optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        for seed in (1, 2):
            reducer.start()
            for each in (model, reference):
                backward(each, seed)
            reducer.step(model)
            reducer.stop()
            optimizer.step()
            optimizer.zero_grad()
        assert parameters(model) == parameters(reference)
        assert reducer.counters().reduced == 2

    # -- together -----------------------------------------------------------------------------

    def test_manages_where_it_says(self, config: ReducerConfig, launcher: LauncherConfig) -> None:
        results = self.launch(launcher, config, manage_everywhere)
        assert "managed" in results

    def test_every_gradient_is_reduced_once(
        self, config: ReducerConfig, launcher: LauncherConfig
    ) -> None:
        results = self.launch(launcher, config, train_as_member)
        counters = [each for _, each, _ in results]
        trainers = sum(trains for _, _, trains in results)
        assert sum(each.pushed for each in counters) == trainers * STEPS
        assert sum(each.reduced for each in counters) == trainers * STEPS
        assert {(each.late, each.refused, each.lost) for each in counters} == {(0, 0, 0)}

    @requires("shared")
    def test_stop_leaves_one_model(self, config: ReducerConfig, launcher: LauncherConfig) -> None:
        results = self.launch(launcher, config, train_as_member)
        first = results[0][0]
        assert [model for model, _, _ in results] == [first] * MEMBERS
        assert first not in [parameters(line(rank)) for rank in range(MEMBERS)]

    @requires("shared")
    @pytest.mark.parametrize("target", [train_two, train_two_at_once])
    def test_two_reducers_do_not_mix(
        self, config: ReducerConfig, launcher: LauncherConfig, target: Callable[..., Any]
    ) -> None:
        results = self.launch(launcher, config, target, critic=config)
        assert results == [results[0]] * MEMBERS
