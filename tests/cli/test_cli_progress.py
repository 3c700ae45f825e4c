"""What ``pparallel run`` counts, and how it puts it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
from tallies import tally_of
from typing_extensions import override

import pparallel
from pparallel.cli.progress import short
from pparallel.cli.progress.counting import KEYS, KINDS, TASK_KINDS
from pparallel.cli.progress.meter import WINDOW, Meter
from pparallel.cli.progress.summary import Summary
from pparallel.cli.progress.tally import Standing, Tally, Tasks
from pparallel.errors import ClosedError
from pparallel.runtime.events import (
    Event,
    GradientsLost,
    MemberEnded,
    MemberStarted,
    PeerLost,
    Pushed,
    Reduced,
    Reported,
    TaskDone,
    TaskDropped,
    TaskFailed,
    TaskQueued,
)
from pparallel.runtime.member import default_names
from pparallel.testing.patience import PATIENCE

# -- meter ----------------------------------------------------------------------------------------


def test_a_meter_without_two_counts_has_no_rate() -> None:
    meter = Meter()
    assert (meter.steps, meter.rate(0.0), meter.mean()) == (None, None, None)
    meter.count(1.0, 100)
    assert (meter.steps, meter.rate(2.0), meter.mean()) == (100, None, None)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    meter = Meter()
    for second in range(60):
        meter.count(float(second), 10 * second if second < 30 else 300 + 100 * (second - 30))
    assert meter.rate(59.0) == pytest.approx(100)
    assert meter.mean() == pytest.approx((300 + 2900) / 59)


def test_a_job_that_is_continued_has_the_rate_of_what_it_does() -> None:
    meter = Meter()
    meter.count(1.0, 5000)
    meter.count(2.0, 5010)
    assert meter.rate(2.0) == pytest.approx(10)
    assert meter.mean() == pytest.approx(10)


def test_a_step_that_falls_back_begins_anew() -> None:
    meter = Meter()
    for time, step in enumerate([1, 2, 3, 1, 3]):
        meter.count(float(time), step)
    assert meter.steps == 3
    assert meter.mean() == pytest.approx(2)


def test_a_silence_lowers_the_rate_once_it_is_unusual() -> None:
    meter = Meter()
    for time in (0.0, 10.0, 20.0):
        meter.count(time, time)
    assert meter.rate(29.0) == pytest.approx(1)
    assert meter.rate(60.0) == pytest.approx(1 / 5)


def test_many_counts_take_little_memory() -> None:
    meter = Meter()
    for number in range(100_000):
        meter.add(number / 10_000)
    assert meter.steps == 100_000
    assert meter.rate(10.0) == pytest.approx(10_000, rel=0.05)
    assert len(meter._marks) <= WINDOW / 0.1 + 3


# -- words ----------------------------------------------------------------------------------------


class Awkward:
    @override
    def __str__(self) -> str:
        raise ValueError("no")


class Scalar:
    dtype, size = "float32", 1

    def item(self) -> float:
        return 0.25


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (3, "3"),
        (3.0, "3"),
        (1234567, "1234567"),
        (123456789, "1.235e+08"),
        (1e-9, "1e-09"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (True, "True"),
        (None, "None"),
        ("a\n b\t c", "a b c"),
        ("\x1b[2Jx", "?[2Jx"),
        ("y" * 30, "y" * 23 + "…"),
        (Scalar(), "0.25"),
        (Awkward(), "<Awkward: ValueError>"),
        (10**400, "<int: OverflowError>"),
    ],
    ids=lambda each: repr(type(each)),
)
def test_values_are_short(value: object, text: str) -> None:
    assert short.value(value) == text


def test_tensors_of_one_element_are_numbers() -> None:
    torch = pytest.importorskip("torch")
    assert short.value(torch.tensor(0.123456, requires_grad=True)) == "0.1235"
    assert short.value(torch.tensor([2])) == "2"
    assert short.value(torch.zeros(2)) == "tensor([0., 0.])"


@pytest.mark.parametrize(
    ("rate", "text"), [(None, "-"), (0.05, "0.05/s"), (12.345, "12.3/s"), (15250.4, "15250/s")]
)
def test_rates(rate: float | None, text: str) -> None:
    assert short.rate(rate) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.9, "0:00"), (67.2, "1:07"), (7213, "2:00:13")])
def test_clocks(seconds: float, text: str) -> None:
    assert short.clock(seconds) == text


def test_states() -> None:
    tally = tally_of(names=("a", "b", "c", "d"))
    assert [each.state for each in tally.standings()] == ["waiting"] * 4
    before = tally.begun
    for name in "abc":
        tally.hear(MemberStarted(name, 0, time=100.0))
    assert (before, tally.begun) == (False, True)
    tally.hear(MemberEnded("a", None, time=103.5))
    tally.hear(MemberEnded("b", RuntimeError("too\nhot")))
    tally.hear(MemberEnded("c", ClosedError("the job", "is ending", consequence=True)))
    found = {each.name: each for each in tally.standings()}
    assert [found[name].state for name in "abcd"] == ["done", "failed", "stopped", "waiting"]
    assert found["b"].why == "RuntimeError: too hot"
    assert found["a"].seconds == 3.5
    assert found["d"].seconds is None


def test_what_counts_as_steps() -> None:
    tally = tally_of(Reported("a", {"loss": 1.0}), Reported("a", {"loss": 2.0}))
    assert tally.standings()[0].steps == 2
    tally.hear(Reduced("a", "reducer", 3, 1, 0.0))
    assert tally.standings()[0].steps == 1
    for _ in range(5):
        tally.hear(Pushed("a", "reducer"))
    assert tally.standings()[0].steps == 5
    tally.hear(Reported("a", {"step": 70}))
    for _ in range(5):
        tally.hear(Pushed("a", "reducer"))
    assert tally.standings()[0].steps == 70
    assert tally.standings()[1].steps is None


@pytest.mark.parametrize("step", ["seven", float("nan"), float("inf"), 10**400, True, None])
def test_a_step_that_is_no_number_is_a_value(step: object) -> None:
    standing = tally_of(Reported("a", {"step": step})).standings()[0]
    assert standing.steps == 1
    assert "step" in standing.values


def test_the_latest_values() -> None:
    tally = tally_of(Reported("a", {"step": 1, "loss": 0.5, "lr": 1}))
    assert dict(tally.standings()[0].values) == {"loss": "0.5", "lr": "1"}
    tally.hear(Reported("a", {"loss": 0.25}))
    assert list(tally.standings()[0].values.items()) == [("lr", "1"), ("loss", "0.25")]
    for number in range(100):
        tally.hear(Reported("a", {f"key{number}": number}))
    values = tally.standings()[0].values
    assert len(values) == KEYS
    assert "key99" in values


def test_tasks_and_gradients() -> None:
    where = ("a", "pool", 0)
    tally = tally_of(
        TaskQueued(*where, 10, "f"),
        TaskDone(*where, 0),
        TaskDone(*where, 1),
        TaskFailed(*where, 2, ValueError()),
        TaskDropped(*where, 4),
        Pushed("a", "reducer"),
        Reduced("b", "reducer", 3, 1, 0.0),
        Reduced("b", "reducer", 3, 2, 0.0),
        GradientsLost("a", "critic", 2, "b"),
        PeerLost("a", "b", "killed"),
        PeerLost("a", "b", "again"),
    )
    first, second = tally.standings()
    assert first.tasks == Tasks(queued=10, done=2, failed=1, dropped=4)
    assert short.tasks(first.tasks.wanted, 2, 1) == "2/6, 1 failed"
    assert first.gradients == {"reducer": {"pushed": 1}, "critic": {"lost": 2}}
    assert second.gradients == {"reducer": {"reduced": 6}}
    assert tally.lost == {"b": "killed"}
    assert Summary(tally).totals() == [
        "gradients of reducer: 1 pushed, 6 reduced",
        "gradients of critic: 2 lost",
        "lost b: killed",
    ]


def test_a_value_that_takes_its_time_stops_nobody() -> None:
    gate = threading.Event()

    class Slow:
        @override
        def __str__(self) -> str:
            assert gate.wait(PATIENCE)
            return "slow"

    tally = tally_of(Reported("a", {"value": Slow()}))
    found: list[list[Standing]] = []
    reader = threading.Thread(target=lambda: found.append(tally.standings()))
    reader.start()
    tally.hear(Reported("b", {"step": 3}))
    gate.set()
    reader.join(PATIENCE)
    assert [each.steps for each in found[0]] == [1, 3]
    assert found[0][0].values == {"value": "slow"}


def test_a_whole_job_is_counted_from_any_thread() -> None:
    def work(rt: pparallel.Runtime) -> None:
        for step in range(100):
            rt.report(step=step)
        rt.pool.map(abs, range(50))

    tally = Tally(default_names(4))
    kinds = (*KINDS, *TASK_KINDS)
    pparallel.launch({"members": 4}, work, listener=tally.hear, kinds=kinds)
    assert len(tally.standings()) == 4
    for each in tally.standings():
        assert (each.state, each.steps) == ("done", 99)
        assert (each.tasks.queued, each.tasks.done) == (50, 50)


def test_a_listener_is_told_of_the_kinds_it_wants() -> None:
    seen: list[Event] = []
    config: Mapping[str, Any] = {"members": 2}
    pparallel.launch(config, abs_of_tasks, listener=seen.append, kinds=[Reported])
    assert {type(each) for each in seen} == {Reported}
    assert {each.member for each in seen} == {"member-0", "member-1"}
    pparallel.launch(None, abs_of_tasks, listener=seen.append, kinds=KINDS)
    assert not any(isinstance(each, TASK_KINDS) for each in seen)


def abs_of_tasks(rt: pparallel.Runtime) -> None:
    rt.report(step=1)
    assert rt.pool.map(abs, [-1]) == [1]
