"""The reducer ``diloco``: who is waited for, and members that leave or die."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from crew import Crew, crew
from diloco_steps import draw, step_on
from reducer_models import begun, launch, numbers, values

from pparallel.errors import PeerLostError
from pparallel.interfaces.reducer import Counters
from pparallel.runtime.events import GradientsLost, GradientsRefused, ReducerEvent
from pparallel.testing.patience import PATIENCE
from pparallel_reducers import DilocoReducerConfig
from pparallel_reducers.diloco.desks import RemoteDesk
from pparallel_reducers.diloco.office import Office
from pparallel_reducers.diloco.outer import Outer
from pparallel_reducers.diloco.rounds import Part, Rounds

if TYPE_CHECKING:
    from pparallel.builder import Runtime


class Turns:
    """What members that are threads tell one another."""

    passed = threading.Event()


def be_slow(rt: Runtime) -> Any:
    """The slow member makes its steps when the other has made a round."""
    told: list[ReducerEvent] = []
    rt.events.subscribe(told.append, ReducerEvent)  # type: ignore[arg-type]
    model = begun(rt, numbers())
    if rt.name == "slow":
        assert Turns.passed.wait(PATIENCE)
    for _ in range(2):
        step_on(rt, model, torch.full((3, 1), 1.0 if rt.name == "slow" else 8.0).double())
    after = values(model)
    Turns.passed.set()
    rt.reducer.stop()
    return after, values(model), rt.reducer.counters(), told


@pytest.mark.parametrize("coordinator", ["quick", "slow"])
def test_a_member_that_is_late_takes_what_the_others_made(
    coordinator: str, caplog: pytest.LogCaptureFixture
) -> None:
    Turns.passed = threading.Event()
    config = DilocoReducerConfig(
        inner_steps=2, outer_lr=1, outer_momentum=0, round_timeout=0.05, coordinator=coordinator
    )
    results = launch(["quick", "slow"], config, be_slow)
    for after, last, _, _ in results:
        assert after == last == [-16.0] * 3, "the late steps went in"
    counted = {"quick": Counters(pushed=2, reduced=2), "slow": Counters(pushed=2, lost=2)}
    counted[coordinator] = counted[coordinator]._replace(late=2)
    assert [each[2][:5] for each in results] == [each[:5] for each in counted.values()]
    told = {"quick": results[0][3], "slow": results[1][3]}
    (lost,) = [each for each in told["slow"] if isinstance(each, GradientsLost)]
    assert (lost.gradients, lost.peer) == (2, coordinator)
    (late,) = [each for each in told[coordinator] if isinstance(each, GradientsRefused)]
    assert (late.gradients, late.sender, late.late) == (2, "slow", True)
    assert late.reason == "the round from version 0 was over: the version is 1"
    assert f"{coordinator}-reducer-coordinator goes on without slow" in caplog.text


def part(sender: str, steps: int = 1, *, stops: bool = False) -> Part:
    return Part(sender, 0, steps, stops, None)


def test_one_that_missed_a_round_is_waited_for_once_it_is_back() -> None:
    rounds = Rounds("abc", timeout=5)
    assert rounds.left(now=0) is None
    rounds.note(part("b"), 10, late=False)
    rounds.note(part("a"), 12, late=False)
    assert (rounds.left(now=12), rounds.left(now=20)) == (3, 0)
    assert not rounds.is_full()
    assert rounds.give_up() == ["c"]
    assert rounds.is_full()
    assert [each.sender for each in rounds.take()] == ["a", "b"]
    for name in "ab":
        assert not rounds.is_full()
        rounds.note(part(name), 30, late=False)
    assert rounds.is_full(), "it waits for one that did not come before"
    assert [each.sender for each in rounds.take()] == ["a", "b"]
    rounds.note(part("c"), 40, late=True)
    assert rounds.left(now=40) is None, "a late part is in no round"
    for name in "bac":
        assert not rounds.is_full()
        rounds.note(part(name), 50, late=False)
    assert rounds.is_full()
    assert [each.sender for each in rounds.take()] == ["a", "b", "c"]


def test_the_last_round_is_that_in_which_nobody_goes_on() -> None:
    rounds = Rounds("abcd", timeout=None)
    rounds.note(part("a", stops=True), 0, late=False)
    rounds.note(part("b", 0, stops=True), 0, late=False)
    assert not rounds.is_full()
    rounds.note(part("c"), 0, late=False)
    assert not rounds.is_full()
    rounds.lose("d")
    assert (rounds.is_full(), rounds.is_last()) == (True, False)
    assert [each.sender for each in rounds.take()] == ["a", "c"]
    rounds.note(part("c", stops=True), 0, late=False)
    assert (rounds.is_full(), rounds.is_last()) == (True, True)
    assert [each.sender for each in rounds.take()] == ["c"]
    assert [each.sender for each in rounds.stopped()] == ["a", "b", "c"]


def leave_early(rt: Runtime) -> tuple[list[float], Counters] | None:
    model = begun(rt, numbers())
    for step in range(1 if rt.name == "leaver" else 6):
        step_on(rt, model, draw(rt.rank, step))
    if rt.name == "leaver":
        return None
    rt.reducer.stop()
    return values(model), rt.reducer.counters()


def test_one_that_leaves_without_stop_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    config = DilocoReducerConfig(inner_steps=2)
    with caplog.at_level(logging.WARNING, "pparallel_reducers"):
        members = ["a", "b", {"name": "leaver", "override": {"close_timeout": 0.05}}]
        a, b, leaver = launch(members, config, leave_early)
    assert leaver is None
    assert a[0] == b[0]
    assert [each.reduced for _, each in (a, b)] == [6, 6]
    assert "leaver left with 1 steps that nobody else has: they are lost, for stop()" in caplog.text


def lose_the_coordinator(rt: Runtime) -> Any:
    model = begun(rt, numbers())
    if rt.name == "b":
        return None
    step_on(rt, model, draw(0, 0))
    next(iter(model.parameters())).grad = draw(0, 1)
    assert rt.reducer.push(model)
    with pytest.raises(PeerLostError, match="'b' has left"):
        rt.reducer.pull(model)
    before = values(model)
    next(iter(model.parameters())).grad = draw(0, 2)
    with pytest.raises(PeerLostError, match="'b' has left"):
        rt.reducer.push(model)
    assert next(iter(model.parameters())).grad is not None, "a push that failed took gradients"
    assert values(model) == before
    with pytest.raises(PeerLostError, match="'b' has left"):
        rt.reducer.stop()
    return rt.reducer.counters()


def test_training_ends_with_the_coordinator() -> None:
    config = DilocoReducerConfig(inner_steps=2, coordinator="b")
    members = ["a", {"name": "b", "override": {"close_timeout": 0.05}}, "c"]
    a, _, c = launch(members, config, lose_the_coordinator)
    assert a[:5] == c[:5] == Counters(pushed=2, lost=2)[:5]


def fail_in_the_outer_step(rt: Runtime) -> list[str]:
    model, errors = begun(rt, numbers()), []

    def note(what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except ArithmeticError as error:
            errors.append(f"{what}: {error}")

    next(iter(model.parameters())).grad = draw(0, 0)
    note("step", lambda: rt.reducer.step(model))
    rt.group().barrier()
    note("watch", rt.reducer.watch)
    note("stop", rt.reducer.stop)
    counters = rt.reducer.counters()
    assert (counters.pushed, counters.reduced, counters.lost) == (1, 0, 1)
    return errors


def test_an_outer_step_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        message = "too steep"
        raise ArithmeticError(message)

    monkeypatch.setattr(Outer, "step", fail)
    a, b, c = launch(["a", "b", "c"], DilocoReducerConfig(inner_steps=1), fail_in_the_outer_step)
    assert a == ["step: too steep", "watch: too steep", "stop: too steep"]
    assert b == c == ["step: too steep", "stop: too steep"]


def start_crew(members: Crew, steps: int, **options: object) -> None:
    program = "diloco_programs:step_with_one_that_dies"
    for name in "abc":
        reducer = {"backend": "diloco", **options}
        members.start(name, program, members.note("steps"), steps, reducer=reducer)


@pytest.mark.parametrize(("backend", "steps"), [("ipc", 1), ("ipc", 2), ("zmq", 2)])
def test_a_killed_member_holds_nobody_up(tmp_path: Path, backend: str, steps: int) -> None:
    """After one step it has handed in nothing; after two, it waits for the round."""
    with crew(tmp_path, {"backend": backend}) as members:
        options: dict[str, Any] = {"inner_steps": 2, "outer_lr": 1, "outer_momentum": 0}
        start_crew(members, steps, **options)
        members.noted("steps")
        members.kill("c")
        members.note("steps over").touch()
        a, b = members.answer("a"), members.answer("b")
        assert not any(members.outcome(name).error for name in "ab")
    # Each step of a is by 1, of b by 2, of c by 3; c may die on the way to the first round.
    assert a[0] == b[0]
    assert a[0] in ([-3 - 3, -4 - 3] if steps == 2 else [-3 - 3])
    assert a[1][:5] == b[1][:5] == [4, 4, 0, 0, 0]


def test_a_killed_coordinator_is_named(tmp_path: Path) -> None:
    with crew(tmp_path, {"backend": "ipc"}) as members:
        options = {"inner_steps": 2, "coordinator": "c"}
        start_crew(members, 1, **options)
        members.noted("steps")
        members.kill("c")
        members.note("steps over").touch()
        for name in "ab":
            assert members.answer(name).startswith("PeerLostError: member 'c' has died")


class EnoughError(Exception):
    """Raised as by a signal's handler, while a pull waits for a round."""


def pull_again(rt: Runtime) -> Any:
    model = begun(rt, numbers())
    for step in range(3):
        next(iter(model.parameters())).grad = draw(rt.rank, step)
        assert rt.reducer.push(model)
        try:
            assert rt.reducer.pull(model)
        except EnoughError:
            assert rt.reducer.pull(model)
    rt.reducer.stop()
    return values(model), rt.reducer.counters()[:5]


@pytest.mark.parametrize("desk", [Office, RemoteDesk])
def test_a_round_whose_wait_was_interrupted_counts_once(
    monkeypatch: pytest.MonkeyPatch, desk: type[Any]
) -> None:
    config = DilocoReducerConfig(inner_steps=1, outer_momentum=0)
    expected = launch(["a", "b"], config, pull_again)
    hand_in, waits = desk.hand_in, itertools.count()

    def interrupted(*arguments: Any) -> Any:
        found = hand_in(*arguments)
        if next(waits) == 1:
            raise EnoughError
        return found

    monkeypatch.setattr(desk, "hand_in", interrupted)
    assert launch(["a", "b"], config, pull_again) == expected
    assert next(waits) > 2, "it was not interrupted"
    assert expected[0][1] == expected[1][1] == (3, 3, 0, 0, 0)
