"""The reducer ``grad_server``: pushes that are interrupted, and repeated or given up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from reducer_models import launch, one_weight, weight

from pparallel.interfaces.reducer import Counters
from pparallel.testing.patience import PATIENCE, until
from pparallel_reducers import GradServerReducerConfig
from pparallel_reducers.grad_server.clock import Clock
from pparallel_reducers.grad_server.courier import Courier
from pparallel_reducers.grad_server.level import Level

if TYPE_CHECKING:
    from pparallel.builder import Runtime


class StoppedError(Exception):
    """Raised by a handler of a signal."""


class Interrupts(threading.local):
    """When the next push of this thread is interrupted: before it is sent, or once it is taken."""

    when: str | None = None


interrupts = Interrupts()


@pytest.fixture(autouse=True)
def _interruptible(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    send, offer = Courier.send, Level.offer

    def interrupted(act: Any, *args: Any) -> Any:
        when, interrupts.when = interrupts.when, None
        if when == "before":
            raise StoppedError
        found = act(*args)
        if when == "after":
            for each in found if isinstance(found, list) else [found]:
                each.result(PATIENCE)
            raise StoppedError
        return found

    monkeypatch.setattr(Courier, "send", lambda *args: interrupted(send, *args))
    monkeypatch.setattr(Level, "offer", lambda *args: interrupted(offer, *args))
    yield
    interrupts.when = None


def push(rt: Runtime, model: torch.nn.Module) -> bool:
    parameter = next(iter(model.parameters()))
    parameter.grad = torch.full_like(parameter, -1.0)
    return rt.reducer.push(model)


def interrupt(rt: Runtime, model: torch.nn.Module, when: str) -> None:
    interrupts.when = when
    with pytest.raises(StoppedError):
        push(rt, model)


Result = tuple[float, Counters, int]


def train(rt: Runtime, when: str, then: str) -> Result:
    """A push of ``a`` is interrupted; ``b`` goes on, until steps without ``a`` are made."""
    reducer, model, refused = rt.reducer, one_weight(), 0
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()
    reducer.pull(model)
    if rt.name == "a":
        assert push(rt, model)
        reducer.pull(model)
        interrupt(rt, model, when)
        if "pull" in then:
            reducer.pull(model)
        if "repeat" in then:
            assert reducer.push(model)
        else:
            model.zero_grad()
        if "push" in then:
            refused += not push(rt, model)
            reducer.pull(model)
    elif reducer.trains:

        def goes_on() -> bool:
            nonlocal refused
            refused += not push(rt, model)
            reducer.pull(model)
            return weight(model) > 8

        until(goes_on, "steps wait for a gradient that does not come")
    reducer.stop()
    return weight(model), reducer.counters(), refused


SERVERS: dict[str, dict[str, Any]] = {
    "primary alone": {"reduce_batch_size": 2},
    "a secondary apart": {"secondaries": ("b",), "reduce_batch_size": 2},
    "one secondary each": {"secondaries": ("a", "b"), "reduce_batch_size": 2},
    "several primaries": {"primaries": ("ps", "b"), "dedicated": False, "reduce_batch_size": 2},
}


@pytest.mark.parametrize("options", SERVERS.values(), ids=SERVERS)
@pytest.mark.parametrize("bound", [0, 1])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "then", ["pull", "push", "stop", "repeat", "pull, repeat", "pull, push", "repeat, push"]
)
def test_a_push_that_is_interrupted_is_counted_once_and_holds_up_nobody(
    then: str, when: str, bound: int, options: dict[str, Any]
) -> None:
    config = GradServerReducerConfig(max_staleness=bound, reduce_method="sum", **options)
    results: list[Result] = launch(["ps", "a", "b"], config, train, when, then)
    pushed = sum(each.pushed for _, each, _ in results)
    assert sum(each.refused for _, each, _ in results) == sum(each for _, _, each in results)
    assert all(each.lost == 0 for _, each, _ in results)
    assert results[0][1].reduced == pushed
    assert [each for each, _, _ in results] == [pushed] * 3
    taken = when == "after" or "repeat" in then
    assert results[1][1].pushed == 1 + taken + ("push" in then) - results[1][2]


def give_up(rt: Runtime, then: str) -> tuple[float, Counters]:
    """The batch of the secondary is never full: what is pushed stays there until stop()."""
    reducer, model = rt.reducer, one_weight()
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()
    if rt.name == "a":
        if then != "push at first":
            reducer.pull(model)
        interrupt(rt, model, "after")
        model.zero_grad()
        if then == "pull":
            reducer.pull(model)
        elif "push" in then:
            assert push(rt, model)
    reducer.stop()
    return weight(model), reducer.counters()


@pytest.mark.parametrize("then", ["pull", "push", "push at first", "stop"])
def test_the_ticket_of_what_is_at_the_secondary_serves_no_other(then: str) -> None:
    config = GradServerReducerConfig(max_staleness=1, reduce_batch_size=10, reduce_method="sum")
    ps, a = launch(["ps", "a"], config, give_up, then)
    pushed = 2 if "push" in then else 1
    assert ps == (pushed, Counters(reduced=pushed, sent_bytes=ps[1].sent_bytes))
    assert (a[0], a[1].pushed) == (pushed, pushed)


@pytest.mark.parametrize(("then", "pushed"), [("push", 2), ("stop", 1)])
def test_without_a_bound_a_push_that_was_given_up_is_counted(then: str, pushed: int) -> None:
    config = GradServerReducerConfig(reduce_batch_size=10, reduce_method="sum")
    ps, a = launch(["ps", "a"], config, give_up, then)
    assert (ps[0], ps[1].reduced, a[1].pushed) == (pushed, pushed, pushed)


def leave_with_it(rt: Runtime, pushes: bool) -> Counters | None:
    """The secondary ends with a gradient whose push was interrupted, and maybe with another."""
    reducer, model = rt.reducer, one_weight()
    lost = threading.Event()
    rt.group().when_lost(lambda *_: lost.set())
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()
    if rt.name == "a":
        assert push(rt, model)
        interrupt(rt, model, "after")
        model.zero_grad()
        if pushes:
            assert push(rt, model)
    rt.group().barrier()
    if rt.name == "leaver":
        return None
    assert lost.wait(PATIENCE)
    if rt.name == "a":
        assert push(rt, model)
    reducer.stop()
    return reducer.counters()


@pytest.mark.parametrize("pushes", [False, True])
def test_what_was_pushed_is_reduced_or_lost(pushes: bool) -> None:
    members = ["ps", "b", {"name": "leaver", "override": {"close_timeout": 0.05}}, "a"]
    config = GradServerReducerConfig(secondaries=("b", "leaver"), reduce_batch_size=10)
    ps, _, _, a = launch(members, config, leave_with_it, pushes)
    assert (a.pushed, a.lost, ps.reduced) == ((4, 3, 1) if pushes else (2, 1, 1))


def train_with_a_wrong_ticket(rt: Runtime) -> Result:
    reducer, model = rt.reducer, one_weight()
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()
    for _ in range(4 if reducer.trains else 0):
        assert push(rt, model)
        reducer.pull(model)
    reducer.stop()
    return weight(model), reducer.counters(), 0


@pytest.mark.parametrize("secondary", ["ps", "b"])
def test_a_ticket_that_is_not_on_its_way_refuses_one_message(
    secondary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, wrong = Clock.arrived, iter([[], [99]])

    def arrive(clock: Clock, serials: list[int]) -> None:
        arrived(clock, [*serials, *next(wrong, [])])

    monkeypatch.setattr(Clock, "arrived", arrive)
    config = GradServerReducerConfig(max_staleness=0, reduce_method="sum", secondaries=(secondary,))
    results: list[Result] = launch(["ps", "a", "b"], config, train_with_a_wrong_ticket)
    assert [each for each, _, _ in results] == [7.0] * 3
    assert results[0][1][:5] == (0, 7, 0, 1, 0)
    assert [each.pushed for _, each, _ in results] == [0, 4, 4]
