"""The books of the reducer ``grad_server`` balance: pushed is reduced or lost, and lost is told."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from crew import crew
from gradient_books import NAMES, TRAINING, check, collect, noted, start
from reducer_models import launch, one_weight, weight

from pparallel.interfaces.reducer import Counters
from pparallel.testing.patience import PATIENCE, until
from pparallel_reducers import GradServerReducerConfig
from pparallel_reducers.grad_server.courier import Courier
from pparallel_reducers.grad_server.level import Level
from pparallel_reducers.grad_server.pace import Pace
from pparallel_reducers.grad_server.tickets import Ticket

if TYPE_CHECKING:
    from pparallel.builder import Runtime


def test_acknowledged_is_within_reduced_within_sent(tmp_path: Path) -> None:
    """A secondary that trains too is killed in the midst; its batches are never full."""
    config = GradServerReducerConfig(
        secondaries=("a", "b"), reduce_batch_size=10, reduce_method="sum"
    )
    with crew(tmp_path, {"backend": "ipc"}, NAMES) as members:
        start(members, tmp_path, config)
        until(lambda: all(len(noted(members, "acked")[each]) > 4 for each in TRAINING), "no pushes")
        members.kill("b")
        for name in NAMES:
            members.processes[name].ended(PATIENCE)
        check(*collect(members, {"b"}), {"b"})


class EnoughError(Exception):
    """Raised by a handler of a signal, while a push waits for its acknowledgement."""


class Interrupting(threading.local):
    """Whether the next push of this thread is interrupted while it waits."""

    now = False


interrupting = Interrupting()


def leave_a_wait(rt: Runtime, stops: bool) -> tuple[float, Counters]:
    """A push of ``a`` is interrupted and given up; ``b`` goes on, until steps without it are made.

    A thread has no signals: what is raised where the push waits stands for one.
    """
    reducer, model = rt.reducer, one_weight()
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()
    reducer.pull(model)

    def push() -> None:
        parameter = next(iter(model.parameters()))
        parameter.grad = torch.full_like(parameter, -1.0)
        reducer.push(model)

    if rt.name == "a":
        interrupting.now = True
        with pytest.raises(EnoughError):
            push()
        model.zero_grad()
        if not stops:
            reducer.pull(model)
            push()
    elif reducer.trains:

        def goes_on() -> bool:
            push()
            reducer.pull(model)
            return weight(model) > 8

        until(goes_on, "steps wait for a gradient that does not come")
    reducer.stop()
    return weight(model), reducer.counters()


@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize("secondaries", [("ps",), ("a", "b")], ids=" ".join)
def test_a_push_that_is_interrupted_is_counted_once_and_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, secondaries: tuple[str, ...], stops: bool
) -> None:
    def interrupted(act: Any) -> Any:
        def call(*args: Any) -> Any:
            found = act(*args)
            if interrupting.now:
                interrupting.now = False
                for each in found if isinstance(found, list) else [found]:
                    each.result(PATIENCE)
                raise EnoughError
            return found

        return call

    monkeypatch.setattr(Courier, "send", interrupted(Courier.send))
    monkeypatch.setattr(Level, "offer", interrupted(Level.offer))
    config = GradServerReducerConfig(
        max_staleness=1, reduce_method="sum", reduce_batch_size=2, secondaries=secondaries
    )
    results = launch(["ps", "a", "b"], config, leave_a_wait, stops)
    pushed = sum(counters.pushed for _, counters in results)
    assert all(counters.lost == 0 for _, counters in results)
    assert results[0][1].reduced == pushed
    assert [each for each, _ in results] == [pushed] * 3


def push_four(rt: Runtime) -> float:
    reducer, model = rt.reducer, one_weight()
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()
    reducer.pull(model)
    for _ in range(4 if reducer.trains else 0):
        parameter = next(iter(model.parameters()))
        parameter.grad = torch.full_like(parameter, -1.0)
        assert reducer.push(model)
    reducer.stop()
    return weight(model)


@pytest.mark.parametrize("secondaries", [("ps",), ("s",)], ids=" ".join)
@pytest.mark.parametrize("bound", [None, 5])
def test_a_bound_leaves_a_step_as_many_gradients(
    bound: int | None, secondaries: tuple[str, ...]
) -> None:
    config = GradServerReducerConfig(
        max_staleness=bound, reduce_batch_size=2, secondaries=secondaries, primary="ps"
    )
    assert launch(["ps", "a", "s"], config, push_four) == [2.0] * 3


class Forgetting(threading.local):
    """Whether the primary forgets the ticket of this thread's next push."""

    now = False


forgetting = Forgetting()


def push_one(rt: Runtime) -> tuple[float, Counters]:
    reducer, model = rt.reducer, one_weight()
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()
    reducer.pull(model)
    if reducer.trains:
        forgetting.now = rt.name == "b"
        parameter = next(iter(model.parameters()))
        parameter.grad = torch.full_like(parameter, -1.0)
        assert reducer.push(model)
    reducer.stop()
    return weight(model), reducer.counters()


@pytest.mark.parametrize("secondaries", [("ps",), ("a",), ("ps", "b")], ids=" ".join)
def test_of_gradients_that_are_summed_only_that_with_an_unknown_ticket_is_refused(
    monkeypatch: pytest.MonkeyPatch, secondaries: tuple[str, ...]
) -> None:
    for_push = Pace.for_push

    def forgotten(pace: Pace, via: str, version: int) -> Ticket | None:
        ticket = for_push(pace, via, version)
        if forgetting.now and ticket is not None:
            forgetting.now = False
            pace._give_back(ticket.serial)
        return ticket

    monkeypatch.setattr(Pace, "for_push", forgotten)
    config = GradServerReducerConfig(
        max_staleness=1, reduce_method="sum", reduce_batch_size=2, secondaries=secondaries
    )
    results = launch(["ps", "a", "b", "c"], config, push_one)
    counters = [each for _, each in results]
    assert sum(each.pushed for each in counters) == 3
    assert sum(each.lost for each in counters) == 1
    assert counters[0].reduced == 2
    assert counters[0].refused == 1
    assert [each for each, _ in results] == [2.0] * 4
