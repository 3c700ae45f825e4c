"""What is logged where a member waits for others whose programs have ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from reducer_models import begun, numbers
from typing_extensions import override

import pparallel
from pparallel.builder import Runtime

REDUCERS: dict[str, dict[str, Any]] = {
    "grad_server": {"backend": "grad_server"},
    "all_reduce": {"backend": "all_reduce"},
    "diloco": {"backend": "diloco"},
    "model_server": {"backend": "model_server"},
}
WITHOUT_STOP = {name: each for name, each in REDUCERS.items() if name != "all_reduce"}


class Logged(logging.Handler):
    """Tells when a message has been logged that contains a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self.seen = threading.Event()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self.seen.set()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have waits counted as long after a moment."""
    monkeypatch.setattr("pparallel.runtime.rpc.group._LONG", 0.05)


@pytest.fixture
def logged(request: pytest.FixtureRequest) -> Iterator[Logged]:
    handler = Logged(request.param)
    logger = logging.getLogger("pparallel")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


class SeenError(Exception):
    """Ends a job in which a member waits, once that was logged."""


def train_once(rt: Runtime) -> None:
    model = begun(rt, numbers())
    if rt.reducer.trains:
        model.weight.grad = torch.ones_like(model.weight)
        rt.reducer.step(model)


def end_when_logged(logged: Logged) -> None:
    assert logged.seen.wait(30), "nothing was logged"
    raise SeenError


def start_again(rt: Runtime, waiting: int, logged: Logged) -> None:
    """One member starts a second run, one watches, and the program of one has ended."""
    train_once(rt)
    rt.reducer.stop()
    if rt.rank == waiting:
        rt.reducer.start()
    if rt.rank == 2:
        end_when_logged(logged)


def leave_without_stop(rt: Runtime, waiting: int, logged: Logged) -> None:
    """One member stops, one watches, and the program of one has ended."""
    train_once(rt)
    if rt.rank == waiting:
        rt.reducer.stop()
    if rt.rank == 2:
        end_when_logged(logged)


def run(target: Callable[..., None], reducer: dict[str, Any], *args: Any) -> None:
    with pytest.raises(SeenError):
        pparallel.launch({"members": 3, "reducer": reducer}, target, args)


@pytest.mark.parametrize("logged", ["programs have ended"], indirect=True)
@pytest.mark.parametrize("waiting", [0, 1])
@pytest.mark.parametrize("reducer", REDUCERS.values(), ids=REDUCERS)
@pytest.mark.usefixtures("quick")
def test_a_start_that_waits_for_a_member_whose_program_has_ended_is_logged(
    reducer: dict[str, Any], waiting: int, logged: Logged, caplog: pytest.LogCaptureFixture
) -> None:
    run(start_again, reducer, waiting, logged)
    told = [each.getMessage() for each in caplog.records if "ended" in each.getMessage()]
    assert any(
        each.startswith(f"member-{waiting} has waited") and f": member-{1 - waiting}." in each
        for each in told
    ), told


@pytest.mark.parametrize("logged", ["programs have ended"], indirect=True)
@pytest.mark.parametrize("waiting", [0, 1])
@pytest.mark.parametrize("reducer", WITHOUT_STOP.values(), ids=WITHOUT_STOP)
@pytest.mark.usefixtures("quick")
def test_a_program_that_ends_without_stop_is_logged_there_and_where_others_wait(
    reducer: dict[str, Any], waiting: int, logged: Logged, caplog: pytest.LogCaptureFixture
) -> None:
    run(leave_without_stop, reducer, waiting, logged)
    told = [each.getMessage() for each in caplog.records]
    left = f"member-{1 - waiting}: the program has ended without stop()"
    assert any(each.startswith(left) for each in told), told
    assert any(each.startswith(f"member-{waiting} has waited") for each in told), told


def wait_long(rt: Runtime) -> None:
    """One member begins late, and no program has ended: that is nothing to be told of."""
    if rt.rank == 1:
        threading.Event().wait(1.2)
    train_once(rt)
    rt.reducer.stop()


def test_a_wait_for_members_whose_programs_go_on_is_not_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pparallel.runtime.rpc.group._LONG", 0.5)
    with ThreadPoolExecutor(len(REDUCERS)) as jobs:
        raw = ({"members": 3, "reducer": each} for each in REDUCERS.values())
        assert [*jobs.map(lambda each: pparallel.launch(each, wait_long), raw)]
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
