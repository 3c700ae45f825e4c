"""Bounded staleness in a gradient server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from typing_extensions import override

import pparallel
from pparallel.interfaces.reducer import Counters
from pparallel.testing.patience import PATIENCE, until
from pparallel_reducers import GradServerReducerConfig

if TYPE_CHECKING:
    from pparallel.builder import Runtime


ROUNDS, PUSHES = 3, 60  #: of the slow member, and of each quick one
STEPS = 400  #: more than there can be


class Marks(torch.optim.Optimizer):
    """Its steps count themselves in the first entry, and see what each gradient was computed on.

    Attributes:
        behind: by how many steps the gradients of each step were behind at most.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.behind: list[int] = []
        self.gradients = 0

    @override
    def step(self, closure: Any = None) -> Any:
        (parameter,) = self.param_groups[0]["params"]
        marks = parameter.grad[0, 1:]
        oldest = int(marks.nonzero()[0])
        self.behind.append(len(self.behind) - oldest)
        self.gradients += int(marks.sum())
        parameter.data[0, 0] += 1


def marked() -> nn.Module:
    model = nn.Linear(STEPS + 1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def mark(model: nn.Module) -> int:
    """Give *model* a gradient that says which version it is computed on; return that."""
    (parameter,) = model.parameters()
    version = int(parameter[0, 0])
    parameter.grad = torch.zeros_like(parameter)
    parameter.grad[0, 1 + version] = 1
    return version


class Race:
    """What the members of a test share, which are threads."""

    def __init__(self) -> None:
        self.pushed: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.slow_has_pulled = threading.Event()

    def quick_have_pushed(self, count: int) -> bool:
        return all(self.pushed[each] >= min(count, PUSHES) for each in ("a", "b"))


def run_race(rt: Runtime, race: Race, bound: int | None) -> tuple[list[int], Counters, int]:
    """Two members push again and again, while a third stays with one gradient for long."""
    reducer, model = rt.reducer, marked()
    optimizer = Marks(model.parameters())
    if reducer.manages:
        reducer.manage_model(model, optimizer)
    reducer.start()
    reducer.pull(model)
    if rt.name == "slow":
        for _ in range(ROUNDS):
            mark(model)
            race.slow_has_pulled.set()
            # Without any staleness they wait for this member.
            goal = race.pushed["a"] + 10 if bound != 0 else 0
            until(partial(race.quick_have_pushed, goal), "the others do not go on")
            assert reducer.push(model)
            reducer.pull(model)
    elif reducer.trains:
        race.slow_has_pulled.wait(PATIENCE)
        for each in range(PUSHES):
            mark(model)
            accepted = reducer.push(model)
            race.pushed[rt.name] += 1
            race.refused[rt.name] += not accepted
            if each % 3:
                reducer.pull(model)
    reducer.stop()
    return optimizer.behind, reducer.counters(), optimizer.gradients


def raced(bound: int | None, **options: Any) -> tuple[list[int], int, Race]:
    race = Race()
    reducer = GradServerReducerConfig(reduce_method="sum", max_staleness=bound, **options)
    config = pparallel.RuntimeConfig(members=["ps", "a", "b", "slow"], reducer=reducer)
    results = pparallel.launch(config, run_race, (race, bound))
    behind, counters, gradients = results[0]
    assert gradients == counters.reduced == sum(each.pushed for _, each, _ in results)
    assert counters.refused == race.refused.total()
    return behind, gradients, race


SERVERS: dict[str, dict[str, Any]] = {
    "primary alone": {},
    "batches": {"reduce_batch_size": 2, "max_queue_size": 3},
    "one secondary each": {"secondaries": ("a", "b", "slow"), "reduce_batch_size": 3},
    "all together": {"secondaries": ("ps", "b"), "reduce_batch_size": 2, "dedicated": False},
}


@pytest.mark.parametrize("options", SERVERS.values(), ids=SERVERS)
@pytest.mark.parametrize("bound", [0, 2])
def test_no_step_is_on_a_gradient_that_is_older_than_allowed(
    bound: int, options: dict[str, Any]
) -> None:
    behind, _, _ = raced(bound, **options)
    assert behind
    assert max(behind) <= bound


def test_without_a_bound_they_are_older() -> None:
    behind, _, race = raced(None)
    assert max(behind) > 2
    assert not race.refused.total()


def outlive(rt: Runtime, pushes: bool) -> int | None:
    """One member leaves with a ticket, and maybe with a gradient at its secondary."""
    reducer, model = rt.reducer, marked()
    if reducer.manages:
        reducer.manage_model(model, Marks(model.parameters()))
    reducer.start()
    reducer.pull(model)
    if rt.name == "leaver" and pushes:
        mark(model)
        assert reducer.push(model)
        reducer.pull(model)
    rt.group().barrier()
    if rt.name == "leaver":
        return None

    def goes_on() -> bool:
        mark(model)
        reducer.push(model)
        return reducer.pull(model) and mark(model) > 3

    if reducer.trains:
        until(goes_on, "steps wait for a member that is gone")
        model.zero_grad()
    reducer.stop()
    return reducer.counters().reduced


@pytest.mark.parametrize("secondaries", [["ps"], ["leaver", "a"], ["a"]], ids=" ".join)
@pytest.mark.parametrize("pushes", [False, True])
def test_steps_do_not_wait_for_a_member_that_left(secondaries: list[str], pushes: bool) -> None:
    members = ["ps", "a", "b", {"name": "leaver", "override": {"close_timeout": 0.05}}]
    reducer = GradServerReducerConfig(
        max_staleness=int(pushes),  # a pull after a push would wait for all
        secondaries=tuple(secondaries),
        reduce_batch_size=2,
    )
    config = pparallel.RuntimeConfig.model_validate({"members": members, "reducer": reducer})
    reduced = pparallel.launch(config, outlive, (pushes,))[0]
    assert reduced is not None
    assert reduced > 3


def train_on_shares(rt: Runtime) -> Counters:
    reducer, model = rt.reducer, nn.Linear(50, 1)
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=0.01))
    reducer.start()
    reducer.pull(model)
    for _ in range(20):
        model(torch.ones(1, 50)).square().sum().backward()
        reducer.step(model)
    reducer.stop()
    return reducer.counters()


@pytest.mark.parametrize("bound", [0, 1])
def test_each_of_several_primaries_has_a_clock(bound: int) -> None:
    reducer = GradServerReducerConfig(
        primaries=("a", "b"),
        secondaries=("b", "c"),
        dedicated=False,
        reduce_batch_size=2,
        max_staleness=bound,
    )
    config = pparallel.RuntimeConfig(members=["a", "b", "c"], reducer=reducer)
    counters = pparallel.launch(config, train_on_shares)
    assert all(each.staleness <= bound for each in counters)
    pushed = sum(each.pushed for each in counters)
    refused = sum(each.refused for each in counters)
    assert [each.reduced for each in counters] == [pushed, pushed, 0]
    assert pushed + refused == 60
