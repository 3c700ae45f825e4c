"""The reducer ``grad_server``: lock-step, and a primary that trains with the managed model."""

from __future__ import annotations

import logging
import signal
import threading
from typing import TYPE_CHECKING, Any

import preloads
import pytest
import torch
from reducer_models import one_weight, weight

import pparallel
from pparallel.testing.patience import until
from pparallel_process import ProcessLauncherConfig
from pparallel_reducers import GradServerReducerConfig
from pparallel_reducers.grad_server import primary as primaries

if TYPE_CHECKING:
    from pparallel.builder import Runtime

STEPS = 12


def launch(members: int, target: Any, *args: Any, **options: Any) -> list[Any]:
    config = GradServerReducerConfig(**options)
    return pparallel.launch(pparallel.RuntimeConfig(members=members, reducer=config), target, args)


def managed(rt: Runtime, counts: list[int] | None = None) -> torch.nn.Module:
    """Return a model of one weight; what each step takes is added to *counts*."""
    model = one_weight()
    if rt.reducer.manages:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        if counts is not None:
            optimizer.register_step_post_hook(lambda *_: counts.append(1))
        rt.reducer.manage_model(model, optimizer)
    rt.reducer.start()
    return model


def push(rt: Runtime, model: torch.nn.Module, value: float = 1.0) -> None:
    next(iter(model.parameters())).grad = torch.full((1, 1), value)
    assert rt.reducer.push(model)


# -- lock-step --------------------------------------------------------------------------------


def step_unequally(rt: Runtime) -> tuple[int, tuple[int, int, int]]:
    """Members that pull first or not, and wait now and then; return the steps that are made."""
    steps: list[int] = []
    model = managed(rt, steps)
    if rt.rank % 2:
        rt.reducer.pull(model)
    for step in range(STEPS if rt.reducer.trains else 0):
        if step % rt.world_size == rt.rank:
            torch.rand(400, 400) @ torch.rand(400, 400)
        push(rt, model)
        rt.reducer.pull(model)
    rt.reducer.stop()
    counters = rt.reducer.counters()
    return len(steps), (counters.pushed, counters.reduced, counters.refused)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dedicated": False},
        {"secondaries": ("member-1", "member-2")},
        {"reduce_batch_size": 2, "dedicated": False},
    ],
    ids=str,
)
def test_each_step_in_lock_step_takes_one_gradient_of_each(options: dict[str, Any]) -> None:
    results = launch(4, step_unequally, max_staleness=0, **options)
    trainers = 4 if "dedicated" in options else 3
    assert [steps for steps, _ in results] == [STEPS, 0, 0, 0]
    assert results[0][1][1:] == (STEPS * trainers, 0)
    assert sum(pushed for _, (pushed, _, _) in results) == STEPS * trainers


def stop_early(rt: Runtime) -> int:
    steps: list[int] = []
    model = managed(rt, steps)
    for _ in range(2 * rt.rank if rt.reducer.trains else 0):
        push(rt, model)
        rt.reducer.pull(model)
    rt.reducer.stop()
    return len(steps)


def test_lock_step_goes_on_without_members_that_stopped() -> None:
    assert launch(4, stop_early, max_staleness=0) == [6, 0, 0, 0]


def push_twice(rt: Runtime) -> tuple[float, list[bool]]:
    """The first member to train hands in two gradients, and the second waits until it has."""
    model = managed(rt)
    parameter, accepted = next(iter(model.parameters())), list[bool]()
    for value in {1: (1.0, 2.0), 2: (5.0,)}.get(rt.rank, ()):
        if rt.rank == 2:
            rt.group().barrier()
        parameter.grad = torch.full((1, 1), value)
        accepted.append(rt.reducer.push(model))
    if rt.rank != 2:
        rt.group().barrier()
    rt.reducer.stop()
    return weight(model), accepted


def test_a_second_gradient_for_a_step_in_lock_step_is_refused() -> None:
    results = launch(3, push_twice, max_staleness=0)
    assert results == [(-3.0, []), (-3.0, [True, False]), (-3.0, [True])]


class StoppedError(Exception):
    """Raised by a handler of a signal."""


def interrupt_a_pull(rt: Runtime) -> float:
    """Have a pull of the last member interrupted that waits for a step."""
    model, last = managed(rt), rt.rank == rt.world_size - 1
    for step in range(3 if rt.reducer.trains else 0):
        if step == 1 and rt.rank == 1:
            rt.group().barrier()  # the last member waits until this one hands in its gradient
        push(rt, model)
        if step != 1 or not last:
            rt.reducer.pull(model)
            continue

        def interrupt(*_: object) -> None:
            raise StoppedError

        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(StoppedError):
            rt.reducer.pull(model)
        signal.signal(signal.SIGALRM, before)
        rt.group().barrier()
        rt.reducer.pull(model)
    if not rt.reducer.trains:
        rt.group().barrier()
    rt.reducer.stop()
    return weight(model)


def test_a_pull_that_was_interrupted_may_be_repeated() -> None:
    job = pparallel.RuntimeConfig(
        members=3,
        launcher=ProcessLauncherConfig(preload=preloads.MEMBERS),
        reducer=GradServerReducerConfig(max_staleness=0),
    )
    assert pparallel.launch(job, interrupt_a_pull) == [-3.0] * 3


# -- what the program does to the model -------------------------------------------------------


def change_the_model_by_hand(rt: Runtime) -> float:
    model = managed(rt)
    for _ in range(2 if rt.reducer.trains else 0):
        push(rt, model)
        rt.reducer.pull(model)
    rt.group().barrier()
    if not rt.reducer.manages:
        with torch.no_grad():
            next(iter(model.parameters())).fill_(100.0)
    rt.reducer.stop()
    return weight(model)


def test_all_members_end_with_one_model_whatever_they_did_to_theirs() -> None:
    assert launch(3, change_the_model_by_hand, max_staleness=0) == [-2.0] * 3


# -- a primary that trains --------------------------------------------------------------------


def push_during_a_barrier(rt: Runtime) -> tuple[float, int]:
    """The primary waits for members that push more than the queue holds."""
    steps: list[int] = []
    model = managed(rt, steps)
    for _ in range(0 if rt.reducer.manages else 5):
        push(rt, model)
    rt.group().barrier()
    before = len(steps)
    if rt.reducer.manages:
        push(rt, model, 6.0)
        assert len(steps) > before, "nothing was stepped while the primary's member pushed"
    rt.reducer.stop()
    return weight(model), before


def test_members_do_not_wait_for_a_primary_that_computes() -> None:
    results = launch(3, push_during_a_barrier, dedicated=False, reduce_method="sum")
    assert {value for value, _ in results} == {-16.0}
    assert results[0][1] == 0, "steps were made while the model was the trainer's"


def look_between_calls(rt: Runtime) -> None:
    """What the trainer sees of the managed model changes only inside its calls."""
    model = managed(rt)
    for _ in range(30):
        if rt.reducer.manages:
            before = weight(model)
            values = {weight(model) for _ in range(200)}
            assert values == {before}
        push(rt, model)
        rt.reducer.pull(model)
    rt.reducer.stop()


def test_the_model_is_the_trainers_between_its_calls() -> None:
    launch(3, look_between_calls, dedicated=False)


def keep_own_gradients(rt: Runtime) -> tuple[float, float]:
    """A pull in which others' gradients are stepped leaves the member's own where they are."""
    model = managed(rt)
    own = next(iter(model.parameters()))
    if not rt.reducer.manages:
        push(rt, model, 4.0)
    rt.group().barrier()
    if rt.reducer.manages:
        own.grad = torch.full((1, 1), 7.0)
        until(lambda: rt.reducer.pull(model), "the step of the other's gradient")
        assert own.grad is not None
        kept = float(own.grad)
        assert rt.reducer.push(model)
    rt.reducer.stop()
    return weight(model), kept if rt.reducer.manages else 7.0


def test_gradients_that_are_not_pushed_yet_stay() -> None:
    assert launch(2, keep_own_gradients, dedicated=False) == [(-11.0, 7.0)] * 2


def test_a_full_batch_that_waits_long_is_told_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(primaries, "_LONG", 0.0)
    with caplog.at_level(logging.WARNING):
        launch(3, push_during_a_barrier, dedicated=False, reduce_method="sum")
    messages = [each.getMessage() for each in caplog.records]
    assert sum("dedicated: true" in each for each in messages) == 1


def test_an_interrupted_wait_for_a_step_takes_the_model_back() -> None:
    def interrupt(*_: object) -> None:
        raise StoppedError

    lease = primaries.ModelLease(always=False)
    step = threading.Thread(target=lease.acquire)
    before = signal.signal(signal.SIGALRM, interrupt)

    def grant_for_a_step_without_end() -> None:
        with lease.granted():
            step.start()
            step.join()
            signal.setitimer(signal.ITIMER_REAL, 0.05)  # in the wait at the end of the block

    try:
        with pytest.raises(StoppedError):
            grant_for_a_step_without_end()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    lease.release()
    assert not lease.acquire()


def call_from_a_hook(rt: Runtime, method: str) -> list[str]:
    model, other, raised = one_weight(), one_weight(), list[str]()

    def call(*_: object) -> None:
        given = {"pull": (model,), "pull another": (other,), "push": (model,)}.get(method, ())
        try:
            getattr(rt.reducer, method.split()[0])(*given)
        except RuntimeError as error:
            raised.append(str(error))

    if rt.reducer.manages:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer.register_step_post_hook(call)
        rt.reducer.manage_model(model, optimizer)
    rt.reducer.start()
    for _ in range(4 if rt.reducer.trains else 0):
        push(rt, model)
        rt.reducer.pull(model)
    rt.reducer.stop()
    assert weight(model) < 0
    assert (weight(other) < 0) == (method == "pull another" and rt.rank == 0)
    return raised


@pytest.mark.parametrize("bound", [None, 0])
@pytest.mark.parametrize("method", ["pull", "pull another", "push", "stop"])
def test_a_hook_waits_for_no_step(method: str, bound: int | None) -> None:
    dedicated = None if bound is None else False
    raised, *others = launch(3, call_from_a_hook, method, max_staleness=bound, dedicated=dedicated)
    assert not any(others)
    assert bool(raised) == (method in {"push", "stop"})
    assert all(f"{method}() was called by a hook of the optimizer" in each for each in raised)


def test_a_hook_may_pull_and_keep_gradients() -> None:
    kept: list[torch.Tensor] = []
    with pparallel.build() as rt:
        model, copy = one_weight(), one_weight()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        parameter = next(iter(model.parameters()))

        def pull_and_keep(*_: object) -> None:
            rt.reducer.pull(copy)
            assert parameter.grad is not None
            kept.append(parameter.grad)

        optimizer.register_step_post_hook(pull_and_keep)
        rt.reducer.manage_model(model, optimizer)
        rt.reducer.start()
        for value in range(4):
            push(rt, model, float(value))
        rt.reducer.stop()
    assert [float(each) for each in kept] == [0.0, 1.0, 2.0, 3.0]
    assert weight(copy) == -6.0, "stop() leaves the final parameters in what was pulled into"


# -- refused gradients ------------------------------------------------------------------------


def repeat_after_a_failure(rt: Runtime) -> tuple[list[str], float]:
    """The first step fails; push again and again, then in another run."""
    model = one_weight()
    fails = [True]

    def fail(*_: object) -> None:
        if fails:
            message = "no memory"
            raise MemoryError(message)

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.register_step_pre_hook(fail)
    rt.reducer.manage_model(model, optimizer)
    rt.reducer.start()
    parameter = next(iter(model.parameters()))
    parameter.grad = torch.ones(1, 1)
    ended = []
    for _ in range(3):
        try:
            rt.reducer.push(model)
        except MemoryError:
            ended.append("raised" if parameter.grad is not None else "lost")
        else:
            ended.append("taken")
    with pytest.raises(MemoryError):
        rt.reducer.stop()
    fails.clear()
    before = weight(model)
    rt.reducer.start()
    assert rt.reducer.push(model)
    rt.reducer.stop()
    return ended, weight(model) - before


def test_a_push_whose_step_failed_raises_again_and_keeps_its_gradient() -> None:
    assert launch(1, repeat_after_a_failure) == [(["raised"] * 3, -1.0)]


def repeat_what_the_primary_refused(rt: Runtime) -> list[str]:
    model = one_weight()
    if rt.reducer.manages:

        def fail(*_: object) -> None:
            message = "no memory"
            raise MemoryError(message)

        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer.register_step_pre_hook(fail)
        rt.reducer.manage_model(model, optimizer)
    rt.reducer.start()
    ended: list[str] = []
    if rt.reducer.trains:
        parameter = next(iter(model.parameters()))
        while len(ended) < 3:  # until it hears of it, its pushes are taken
            parameter.grad = torch.ones(1, 1)
            try:
                rt.reducer.push(model)
            except MemoryError:
                ended.append("raised")
                assert parameter.grad is not None
            else:
                assert not ended
    with pytest.raises(MemoryError):
        rt.reducer.stop()
    return ended


def test_a_push_that_the_primary_refused_is_refused_again() -> None:
    assert launch(2, repeat_what_the_primary_refused)[1] == ["raised"] * 3
