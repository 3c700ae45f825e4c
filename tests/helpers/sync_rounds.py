"""Rounds of a master and its slaves, each in a thread: of one process, or members of a job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import pparallel
from pparallel import SlavePipe, SyncMaster
from pparallel.testing.patience import PATIENCE, until

Messages = list[tuple[Any, Any]]
Role = Callable[..., Any]  #: is given its end, and the end's method that runs a round

NAMES = ["a", "b", "c", "d"]  #: of the participants; that of the first, the master, is a member's


def add_up(messages: Messages) -> Messages:
    total = sum(message for _, message in messages)
    return [(identifier, total) for identifier, _ in messages]


def ended(future: Future[Any]) -> BaseException:
    """Return what the call raised."""
    error = future.exception(PATIENCE)
    assert error is not None
    return error


def failure(run: Callable[..., Any], *args: Any) -> Any:
    """Return what the call raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the caller looks at it
        run(*args)
    return caught.value


class Round:
    """Calls of participants, each in a thread of its own."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def call(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                future.set_exception(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)
        return future

    def end(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture
def calls() -> Any:
    calls = Round()
    yield calls
    calls.end()


def until_waiting(master: SyncMaster, count: int) -> None:
    """Return when so many participants wait."""

    def wait() -> bool:
        everybody = master._sets.current._everybody.values()
        return sum(each.call is not None for each in everybody) == count

    until(wait, f"{count} did not wait")


def launch(members: int | list[Any], target: Callable[..., Any], *args: Any) -> list[Any]:
    config = {"members": members, "reducer": {"backend": "local"}, "close_timeout": PATIENCE}
    return pparallel.launch(config, target, args)


def among_threads(callback: Any, *roles: Role, timeout: float | None = None) -> list[Any]:
    """Return what each role returns or raises, the master's first."""
    master = SyncMaster(callback, timeout=timeout)
    pipes = {name: master.register_slave(name) for name in reversed(NAMES[1 : len(roles)])}
    ends = [master, *(pipes[name] for name in NAMES[1 : len(roles)])]
    with ThreadPoolExecutor(len(roles)) as threads:
        return list(threads.map(_outcome, roles, ends))


def among_members(callback: Any, *roles: Role, timeout: float | None = None) -> list[Any]:
    """Return what each role returns or raises, the master's first."""

    def take_part(rt: pparallel.Runtime) -> Any:
        group = rt.group()
        end = (
            SyncMaster.join(group, "test")
            if rt.rank
            else SyncMaster.across(group, "test", callback, timeout=timeout)
        )
        outcome = _outcome(roles[rt.rank], end)
        group.barrier()
        return outcome

    return launch(NAMES[: len(roles)], take_part)


def _outcome(role: Role, end: SyncMaster | SlavePipe) -> Any:
    run = end.run_master if isinstance(end, SyncMaster) else end.run_slave
    try:
        return role(end, run)
    except BaseException as error:  # noqa: BLE001 - the test looks at it
        return error
