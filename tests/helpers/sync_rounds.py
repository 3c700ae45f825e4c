"""Rounds of a master and its slaves, each in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from pparallel import SlavePipe, SyncMaster
from pparallel.testing.patience import PATIENCE, until

Messages = list[tuple[Any, Any]]


def add_up(messages: Messages) -> Messages:
    total = sum(message for _, message in messages)
    return [(identifier, total) for identifier, _ in messages]


def echo(messages: Messages) -> Messages:
    return messages


def ended(future: Future[Any]) -> BaseException:
    """Return what the call raised."""
    error = future.exception(PATIENCE)
    assert error is not None
    return error


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


def until_registered(master: SyncMaster, pipe: SlavePipe) -> SlavePipe:
    """Register a slave when *pipe* and the master wait."""

    def both_wait() -> bool:
        gathering = master._sets.current
        return gathering._whole is not None and len(gathering._here()) == 1

    until(both_wait, "the two did not wait")
    return master.register_slave("new")
