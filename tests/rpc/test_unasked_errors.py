"""Errors of calls that nobody asks for leave a line in the log."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from concurrent.futures import CancelledError, wait
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from rpc_members import Gates, between, launch, wait_at_gate

import pparallel
from pparallel import Runtime
from pparallel.errors import CallTimeoutError
from pparallel.runtime.future import TorchFuture
from pparallel.runtime.rpc.group import RpcGroup
from pparallel.testing.patience import PATIENCE, until

BACKENDS = pytest.mark.parametrize("backend", ["local", "ipc"])


def fail(text: str) -> None:
    raise ValueError(text)


def fail_at_gate(text: str) -> None:
    wait_at_gate()
    fail(text)


def cancel_itself() -> None:
    raise CancelledError


def unasked(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each for each in caplog.records if "never asked for" in each.getMessage()]
    assert all(each.levelno == logging.WARNING for each in found)
    return [each.getMessage() for each in found]


def run(
    caplog: pytest.LogCaptureFixture, work: Callable[[RpcGroup], object], backend: str = "local"
) -> list[str]:
    """Do *work* in the first of two members; return what was logged, the last of it by this."""
    Gates.opened.clear()

    def program(rt: Runtime, group: RpcGroup) -> None:
        work(group)
        gc.collect()
        group.rpc_async(1, fail, ("the last",))
        until(lambda: "the last" in caplog.text, "it was not logged")

    with caplog.at_level(logging.WARNING):
        launch(between(program), backend=backend)
    return unasked(caplog)[:-1]


@BACKENDS
def test_the_error_of_a_call_whose_future_is_dropped_is_logged(
    caplog: pytest.LogCaptureFixture, backend: str
) -> None:
    def work(group: RpcGroup) -> None:
        group.rpc_async(1, fail, ("dropped",))
        until(lambda: "ValueError: dropped" in caplog.text, "it was not logged")
        kept = group.rpc_async(1, fail, ("kept",))
        wait([kept], PATIENCE)
        assert "kept" not in caplog.text
        del kept
        until(lambda: "ValueError: kept" in caplog.text, "it was not logged")

    found = run(caplog, work, backend)
    assert len(found) == 2
    assert all(each.startswith("The error of a call to 'm1' was never asked for") for each in found)
    assert all("in fail" in each for each in found)  # where it was raised


@BACKENDS
def test_an_error_that_was_asked_for_is_not_logged(
    caplog: pytest.LogCaptureFixture, backend: str
) -> None:
    def work(group: RpcGroup) -> None:
        asks: list[Callable[[Any], object]] = [
            lambda future: future.result(PATIENCE),
            lambda future: future.exception(PATIENCE),
            lambda future: wait([future], PATIENCE) and future.result(),
            lambda future: wait([future], PATIENCE) and future.exception(),
            lambda future: pparallel.wait_all([future]),
            lambda future: pparallel.collect_all([future]).wait(PATIENCE)[0].exception(),
            lambda future: future.then(lambda done: done.value()).result(PATIENCE),
        ]
        for ask in asks:
            with suppress(ValueError):
                ask(group.rpc_async(1, fail, ("asked",)))
        with pytest.raises(ValueError, match="asked"):
            group.rpc_sync(1, fail, ("asked",))
        with pytest.raises(ValueError, match="asked"):
            group.remote(1, fail, ("asked",)).to_here(PATIENCE)

    assert run(caplog, work, backend) == []


@BACKENDS
def test_the_error_of_a_callback_is_logged(caplog: pytest.LogCaptureFixture, backend: str) -> None:
    def work(group: RpcGroup) -> None:
        done = group.rpc_async(1, abs, (-1,))
        done.then(lambda _: fail("in a callback")).then(lambda _: None)
        # The frames of the error, which it keeps, refer to the future.
        until(lambda: gc.collect() >= 0 and "in a callback" in caplog.text, "it was not logged")
        done.then(lambda _: fail("asked")).exception(PATIENCE)

    [found] = run(caplog, work, backend)
    assert "in fail" in found


@BACKENDS
@pytest.mark.parametrize("function", [fail, fail_at_gate])
def test_why_there_is_no_value_is_logged_by_its_owner(
    caplog: pytest.LogCaptureFixture, backend: str, function: Callable[[str], None]
) -> None:
    def work(group: RpcGroup) -> None:
        group.remote(1, function, ("no value",))
        Gates.opened.set()
        until(lambda: "ValueError: no value" in caplog.text, "it was not logged")

    [found] = run(caplog, work, backend)
    assert found.startswith("The error of remote() on 'm1' was never asked for")


def test_a_call_that_was_too_late_or_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    def work(group: RpcGroup) -> None:
        group.rpc_async(1, wait_at_gate, timeout=0.01)
        until(lambda: CallTimeoutError.__name__ in caplog.text, "it was not logged")
        assert group.rpc_async(1, wait_at_gate).cancel()
        Gates.opened.set()

    [found] = run(caplog, work)
    assert "was not answered within 0.01 s" in found


def test_an_end_that_is_expected_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    Gates.opened.clear()

    def program(rt: Runtime) -> None:
        if rt.rank == 0:
            rt.group().rpc_async(0, wait_at_gate)  # it is not answered before the end

    with caplog.at_level(logging.WARNING):
        try:
            launch(program)
        finally:
            Gates.opened.set()
    assert unasked(caplog) == []


@BACKENDS
@pytest.mark.parametrize("fails", [False, True])
def test_a_future_that_is_held_at_the_end_of_a_job_that_does_not_fail(
    caplog: pytest.LogCaptureFixture, backend: str, fails: bool
) -> None:
    held: list[Any] = []

    def program(rt: Runtime, group: RpcGroup) -> None:
        held.append(group.rpc_async(1, fail, ("held",)))
        wait(held, PATIENCE)
        if fails:
            raise KeyError("of the job")

    with caplog.at_level(logging.WARNING), pytest.raises(KeyError) if fails else nullcontext():
        launch(between(program), backend=backend)
    found = unasked(caplog)
    assert len(found) == (not fails)
    assert all("ValueError: held" in each for each in found)


@pytest.mark.parametrize("ends", [False, True])
def test_a_call_that_the_end_of_the_job_cancels_is_not_logged(
    caplog: pytest.LogCaptureFixture, ends: bool
) -> None:
    def program(rt: Runtime, group: RpcGroup) -> None:
        future = group.rpc_async(1, cancel_itself)
        wait([future], PATIENCE)
        if ends:
            group._endpoint.leave()
        del future
        if not ends:
            until(lambda: "never asked for" in caplog.text, "it was not logged")

    with caplog.at_level(logging.WARNING):
        launch(between(program))
    gc.collect()
    assert len(unasked(caplog)) == (not ends)


def test_a_future_of_nobody_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    future: TorchFuture[int] = TorchFuture()
    future.set_exception(ValueError())
    del future
    gc.collect()
    assert unasked(caplog) == []
