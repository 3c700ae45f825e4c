"""How runs of the reducer ``all_reduce`` end where something is raised, and begin again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import preloads
import pytest
import torch
from reducer_models import begun, numbers, values
from torch import nn
from typing_extensions import override

import pparallel
from pparallel.builder import Runtime
from pparallel.errors import PeerLostError
from pparallel.testing.patience import until

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "overlap": {"overlap": True},
    "buffers": {"broadcast_buffers": True},
    "shm": {"collective": {"backend": "shm"}},
}
modes = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def launch(members: int, target: Callable[..., Any], *args: Any, **reducer: Any) -> list[Any]:
    raw = {"members": members, "reducer": {"backend": "all_reduce", **reducer}}
    return pparallel.launch(raw, target, args)


def step_on(rt: Runtime, model: nn.Module, value: float = 1.0) -> None:
    for each in model.parameters():
        each.grad = None
    sum((each * value).sum() for each in model.parameters()).backward()  # type: ignore[union-attr]
    rt.reducer.step(model)


# -- stop() makes the others' steps ----------------------------------------------------------------


class TooLateError(Exception):
    """Raised by a scheduler."""


class Ending(torch.optim.lr_scheduler.LambdaLR):
    """Has so many steps, and then raises, as OneCycleLR does."""

    def __init__(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        self.left = steps + 1  # the constructor makes one
        super().__init__(optimizer, lambda _: 1.0)

    @override
    def step(self, epoch: int | None = None) -> None:
        self.left -= 1
        if self.left < 0:
            raise TooLateError
        super().step(epoch)


def train_with_fewer_batches(rt: Runtime) -> tuple[str, list[float]]:
    """Two members make two steps and stop, in whose scheduler there are no more."""
    model = numbers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    steps = 5 if rt.rank == 0 else 2
    rt.reducer.manage_model(model, optimizer, Ending(optimizer, steps))
    rt.reducer.start()
    for _ in range(steps):
        step_on(rt, model)
    raised = ""
    try:
        rt.reducer.stop()
    except TooLateError:
        raised = "too late"
    return raised, values(model)


@modes
def test_a_scheduler_that_raises_in_stop_does_not_hold_up_the_others(mode: dict[str, Any]) -> None:
    found = launch(3, train_with_fewer_batches, **mode)
    assert [raised for raised, _ in found] == ["", "too late", "too late"]
    assert [weights for _, weights in found] == [[-5.0] * 3] * 3


class Interrupted(BaseException):
    """What ends a step half way, as Ctrl-C does."""


def interrupt_a_hook_in_stop(rt: Runtime) -> str:
    model = numbers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rt.reducer.manage_model(model, optimizer)
    rt.reducer.start()
    if rt.rank == 0:
        try:
            for _ in range(3):
                step_on(rt, model)
        except PeerLostError as error:
            return f"{error.peer} is lost"

    def interrupt(*_: object) -> None:
        raise Interrupted

    optimizer.register_step_post_hook(interrupt)
    with pytest.raises(Interrupted):
        rt.reducer.stop()
    return "interrupted"


@modes
def test_an_interrupt_in_stop_does_not_leave_the_others_waiting(mode: dict[str, Any]) -> None:
    assert launch(2, interrupt_a_hook_in_stop, **mode) == ["member-1 is lost", "interrupted"]


# -- an optimizer that raises ----------------------------------------------------------------------


@modes
def test_an_optimizer_that_raises_in_one_member_is_named_in_the_others(
    mode: dict[str, Any],
) -> None:
    first, second = launch(2, fail_and_go_on, **mode)
    assert first[0].startswith("RuntimeError: the optimizer of member 'member-1' failed")
    assert second[0].startswith("MemoryError")
    assert first[1:] == second[1:] == ["started again", "[-1.0, -1.0, -1.0]"]


def fail_and_go_on(rt: Runtime) -> list[str]:
    """An optimizer fails in one; then all begin another run, without stop()."""
    model = numbers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    failing = [rt.rank == 1]

    def fail(*_: object) -> None:
        if failing[0]:
            raise MemoryError

    optimizer.register_step_pre_hook(fail)
    rt.reducer.manage_model(model, optimizer)
    rt.reducer.start()
    told: list[str] = []
    for _ in range(2):
        try:
            step_on(rt, model)
        except (MemoryError, RuntimeError) as error:
            told.append(f"{type(error).__name__}: {error}")
    told = told[:1]
    failing[0] = False
    with torch.no_grad():
        model.weight.zero_()
    rt.reducer.start()
    told.append("started again")
    step_on(rt, model)
    rt.reducer.stop()
    return [*told, str(values(model))]


# -- interrupts while members wait -----------------------------------------------------------------


@contextmanager
def interrupting_soon() -> Iterator[None]:
    """Raise Interrupted in the block, as a signal's handler may."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def wait_to_be_told(rt: Runtime) -> None:
    until(lambda: rt.group().is_paired("interrupted"), "the other was interrupted")


def pass_a_barrier_twice(rt: Runtime) -> bool:
    group = rt.group()
    if rt.rank == 0:
        with pytest.raises(Interrupted), interrupting_soon():
            group.barrier()
        group.pair("interrupted", 1)
    else:
        wait_to_be_told(rt)
    group.barrier()
    group.barrier()
    return True


def launch_processes(target: Callable[..., Any]) -> list[Any]:
    launcher = {"backend": "process", "preload": preloads.MEMBERS}
    raw = {"members": 2, "launcher": launcher, "reducer": {"backend": "all_reduce"}}
    return pparallel.launch(raw, target)


def test_a_barrier_that_was_interrupted_may_be_called_again() -> None:
    assert launch_processes(pass_a_barrier_twice) == [True] * 2


# -- the model -------------------------------------------------------------------------------------


class WithLeaf(nn.Module):
    """Has a buffer that gradients flow to."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("leaf", torch.ones(2, requires_grad=True))


def train_with_leaf(rt: Runtime) -> list[float]:
    model = begun(rt, WithLeaf())
    with torch.no_grad():
        model.get_buffer("leaf").fill_(float(rt.rank))
    model.weight.grad = torch.ones(2)
    rt.reducer.step(model)
    rt.reducer.stop()
    found: list[float] = model.get_buffer("leaf").tolist()
    return found


@modes
def test_a_buffer_that_requires_gradients_is_averaged(mode: dict[str, Any]) -> None:
    found = launch(2, train_with_leaf, **mode)
    assert found[0] == found[1]
