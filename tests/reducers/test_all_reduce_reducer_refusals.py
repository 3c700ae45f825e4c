"""What the reducer ``all_reduce`` refuses, in all members, and what fails in one of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import all_reduce_programs as programs
import pytest
import torch
from reducer_models import begun, numbers, values
from torch import nn
from typing_extensions import override

import pparallel
from pparallel.errors import CallTimeoutError, ConfigError, PeerLostError
from pparallel.interfaces.reducer import Counters
from pparallel.runtime.events import GradientsRefused
from pparallel.testing.reducer import backward, line, manage, parameters

if TYPE_CHECKING:
    from pparallel.builder import Runtime

MODES: dict[str, dict[str, Any]] = {
    "flat": {},
    "straight": {"collective": {"backend": "shm"}},
    "overlap": {"bucket": 16, "overlap": True},
}
modes = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def launch(members: Any, target: Callable[..., Any], *args: Any, **reducer: Any) -> list[Any]:
    raw = {"members": members, "reducer": {"backend": "all_reduce", **reducer}}
    return pparallel.launch(raw, target, args)


def raised_by(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the test is told
        return f"{type(error).__name__}: {error}"
    return ""


# -- gradients ------------------------------------------------------------------------------------


def leave_one_out(rt: Runtime) -> tuple[str, bool, list[list[float]], Counters]:
    """In the second member the loss of the first step depends on the first layer alone."""
    model = line()
    manage(rt.reducer, model)
    rt.reducer.start()
    if rt.rank == 1:
        model[0](torch.ones(2, 3)).sum().backward()
    else:
        backward(model, 1)
    before = parameters(model)
    error = raised_by(lambda: rt.reducer.step(model))
    kept = parameters(model) == before and model[0].weight.grad is not None
    backward(model, 1)
    rt.reducer.step(model)
    rt.reducer.stop()
    return error, kept, parameters(model), rt.reducer.counters()


@modes
def test_a_parameter_without_gradient_in_one_member(mode: dict[str, Any]) -> None:
    a, b, c = launch(["a", "b", "c"], leave_one_out, **mode)
    assert b[0].startswith("ValueError: parameter '1.weight' has no gradient: call backward()")
    assert a[0] == c[0]
    assert a[0].startswith("ValueError: parameter '1.weight' of member 'b' has no gradient: in")
    assert a[1] == b[1] == c[1] is True
    assert a[2] == b[2] == c[2]
    assert all(each[3][:5] == (1, 1, 0, 0, 0) for each in (a, b, c))


def push_nan(rt: Runtime) -> Any:
    model, told = numbers(), list[GradientsRefused]()
    rt.events.subscribe(told.append, GradientsRefused)  # type: ignore[arg-type]
    begun(rt, model)
    steps = [programs.step_on(rt, model, math.nan if rt.name == "b" else 1.0)]
    assert next(iter(model.parameters())).grad is None, "it would be stepped on again"
    steps.append(programs.step_on(rt, model, 1.0))
    rt.reducer.stop()
    reasons = [(each.gradients, each.sender, each.late, each.reason) for each in told]
    return steps, values(model), rt.reducer.counters()[:5], reasons


@modes
def test_gradients_that_are_not_finite(mode: dict[str, Any]) -> None:
    results = launch(["a", "b"], push_nan, refuse_nan=True, **mode)
    whose = {"a": " of member 'b'", "b": ""}
    for name, (steps, last, counters, reasons) in zip("ab", results, strict=True):
        assert steps == [False, True]
        assert last == [-1.0] * 3
        assert counters == (1, 1, 0, 1, 0)
        assert reasons == [(1, name, False, f"the gradient of 'weight'{whose[name]} is not finite")]
    taken = launch(["a", "b"], push_nan, **mode)
    assert [each[0] for each in taken] == [[True, True]] * 2
    assert all(math.isnan(value) for each in taken for value in each[1])


# -- at the start ---------------------------------------------------------------------------------


def start_with_another_model(rt: Runtime) -> tuple[str, list[list[float]]]:
    manage(rt.reducer, line(outputs=2 if rt.name == "b" else 1))
    error = raised_by(rt.reducer.start)
    model = line(rt.rank)
    manage(rt.reducer, model)
    rt.reducer.start()
    backward(model, 1)
    rt.reducer.step(model)
    rt.reducer.stop()
    return error, parameters(model)


@modes
def test_members_with_different_models(mode: dict[str, Any]) -> None:
    a, b, c = launch(["a", "b", "c"], start_with_another_model, **mode)
    assert a[0] == c[0] == "ValueError: the model or the config of member 'b' is not that of 'a'"
    assert b[0].startswith(
        "ValueError: the model is not like the managed one: it has trainable '1."
    )
    assert a[1] == b[1] == c[1], "another try was not one of all"


def start_with_another_config(rt: Runtime) -> str:
    manage(rt.reducer, line())
    return raised_by(rt.reducer.start)


def test_members_with_different_configs() -> None:
    other = {"reducer": {"backend": "all_reduce", "overlap": True}}
    a, b = launch(["a", {"name": "b", "override": other}], start_with_another_config)
    assert a == "ValueError: the model or the config of member 'b' is not that of 'a'"
    assert b == (
        "ValueError: the overlap of this member is True, that of 'a' is False: give all the same"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bucket": 0}, r"reducer\.bucket"),
        ({"bucket": "25 pounds"}, r"reducer\.bucket"),
        ({"reduce_method": "max"}, r"reducer\.reduce_method.*'mean' or 'sum'"),
        ({"overlaps": True}, r"'overlaps'.*overlap"),
        ({"collective": {"backend": "shn"}}, r"'shn'.*shm"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pparallel.load({"reducer": {"backend": "all_reduce", **options}})


# -- what fails in one member ---------------------------------------------------------------------


class Failing(torch.optim.SGD):
    """Fails when it is told to."""

    fails = False

    @override
    def step(self, closure: Any = None) -> Any:
        if self.fails:
            message = "too steep"
            raise ArithmeticError(message)
        return super().step(closure)


def train_with_a_failing_optimizer(rt: Runtime, steps: list[int]) -> Any:
    """The second member's optimizer fails in the second step; then all start again."""
    model = numbers()
    optimizer = Failing(model.parameters(), lr=1.0)
    begun(rt, model, optimizer)
    told = []
    for step in range(steps[rt.rank]):
        optimizer.fails = rt.rank == 1 and step == 1
        told.append(raised_by(lambda: programs.step_on(rt, model, 1.0)))
    optimizer.fails = rt.rank == 1 and steps[1] == 1
    told += [raised_by(rt.reducer.stop), raised_by(rt.reducer.watch)]
    optimizer.fails = False
    rt.reducer.start()
    programs.step_on(rt, model, 1.0)
    rt.reducer.stop()
    rt.reducer.watch()
    return told, values(model), rt.reducer.counters()[:5]


OWN = "ArithmeticError: too steep"
TOLD = "RuntimeError: the optimizer of member 'b' failed: its model is its own from then on"


@modes
@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([3, 3], (["", "", TOLD, TOLD, TOLD], ["", OWN, TOLD, TOLD, TOLD])),
        ([3, 2], (["", "", TOLD, TOLD, TOLD], ["", OWN, TOLD, TOLD])),
        ([2, 3], (["", "", TOLD, TOLD], ["", OWN, TOLD, TOLD, TOLD])),
        ([3, 1], (["", "", TOLD, TOLD, TOLD], ["", OWN, TOLD])),
    ],
)
def test_an_optimizer_that_fails_in_one_member(
    steps: list[int], expected: tuple[list[str], list[str]], mode: dict[str, Any]
) -> None:
    """It raises what it raised; the others are told in their next step, or when they stop."""
    a, b = launch(["a", "b"], train_with_a_failing_optimizer, steps, **mode)
    assert (a[0], b[0]) == expected
    assert a[1] == b[1] == [-3.0] * 3, "start() gives the first member's parameters"
    assert (a[2][:2], b[2][:2]) == ((3, 3), (2, 2))


def diverge(rt: Runtime) -> tuple[list[float], list[float]]:
    model = numbers()
    begun(rt, model, torch.optim.SGD(model.parameters(), lr=1.0 + rt.rank))
    programs.step_on(rt, model, 1.0)
    before = values(model)
    rt.reducer.stop()
    return before, values(model)


def test_models_that_have_come_to_differ(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pparallel_reducers"):
        results = launch(["a", "b"], diverge)
    assert results == [([-1.0] * 3, [-1.0] * 3), ([-2.0] * 3, [-1.0] * 3)]
    (told,) = [each.getMessage() for each in caplog.records]
    assert told.startswith(
        "the parameters of b had come to differ from those of a, first in 'weight'"
    )


# -- members that do not come ---------------------------------------------------------------------


def leave_without_stopping(rt: Runtime) -> Any:
    model = numbers()
    begun(rt, model)
    programs.step_on(rt, model, 1.0)
    if rt.name == "b":
        return None
    told = [raised_by(lambda: programs.step_on(rt, model, 1.0)) for _ in range(2)]
    return [*told, raised_by(rt.reducer.stop)], rt.reducer.counters()[:5]


@modes
def test_who_leaves_without_stopping(
    mode: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    members = ["a", "b", "c"]
    with caplog.at_level(logging.WARNING, "pparallel_reducers"):
        a, _, c = launch(members, leave_without_stopping, **mode)
    for told, counters in (a, c):
        assert all(each.startswith("PeerLostError: member 'b' has left") for each in told)
        assert counters == (1, 1, 0, 0, 0)
    assert "b left without stop(): the others cannot go on" in [
        each.getMessage() for each in caplog.records
    ]


def leave_in_the_middle(rt: Runtime) -> None:
    model = numbers()
    begun(rt, model)
    programs.step_on(rt, model, 1.0)
    if rt.name != "b":
        programs.step_on(rt, model, 1.0)


@modes
def test_a_program_that_does_not_catch_it_ends(mode: dict[str, Any]) -> None:
    with pytest.raises(PeerLostError, match="'b' has left") as caught:
        launch(["a", "b", "c"], leave_in_the_middle, **mode)
    assert caught.value.__cause__ is not caught.value


def wait_in_vain(rt: Runtime) -> None:
    model = numbers()
    begun(rt, model)
    if rt.name == "a":
        with pytest.raises(CallTimeoutError):
            programs.step_on(rt, model, 1.0)
        with pytest.raises(CallTimeoutError):
            programs.step_on(rt, model, 1.0)
        rt.group().barrier()
    else:
        rt.group().barrier()
        with pytest.raises(PeerLostError, match="'a' has left"):
            programs.step_on(rt, model, 1.0)
    assert model.weight.grad is not None, "a push that failed took gradients"


def test_who_does_not_come_in_time() -> None:
    launch(["a", "b"], wait_in_vain, collective={"backend": "local", "timeout": 0.5})


def fail_in_one(rt: Runtime) -> None:
    model: nn.Linear = numbers()
    begun(rt, model)
    if rt.name == "b":
        message = "as expected"
        raise KeyError(message)
    programs.step_on(rt, model, 1.0)


def test_a_program_that_fails_ends_the_job() -> None:
    with pytest.raises(KeyError, match="as expected"):
        launch(["a", "b", "c"], fail_in_one)
