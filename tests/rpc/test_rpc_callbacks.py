"""What is called when a call has ended, and what waits for several."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from rpc_members import Gates, add, add_late, first_of_two, launch, wait_at_gate

from pparallel import Runtime
from pparallel.errors import ClosedError
from pparallel.runtime.rpc import context
from pparallel.runtime.rpc.group import RpcGroup
from pparallel.testing.patience import PATIENCE, until

each_backend = pytest.mark.parametrize("backend", ["local", "ipc", "zmq"])


def call_back(group: RpcGroup, callback: Callable[[Future[Any]], object]) -> Future[Any]:
    future = group.rpc_async(1, add_late, args=(1, 2))
    future.add_done_callback(callback)
    return future


@each_backend
def test_a_callback_that_calls_receives_its_reply(backend: str) -> None:
    found: list[int] = []

    def calls(_: object) -> None:
        found.append(group.rpc_sync(1, add_late, timeout=PATIENCE, args=(1, 3)))
        found.append(group.rpc_async(1, add_late, args=(1, 4)).result(PATIENCE))

    with first_of_two(backend) as group:
        assert call_back(group, calls).result(PATIENCE) == 3
        until(lambda: found == [4, 5], "the callback did not end")


@each_backend
def test_a_callback_that_exits_is_logged(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    def leaves(_: object) -> None:
        raise SystemExit(3)

    with caplog.at_level(logging.ERROR), first_of_two(backend) as group:
        call_back(group, leaves).result(PATIENCE)
        until(lambda: "SystemExit" in caplog.text, "it was not logged")
        assert group.rpc_sync(1, add, timeout=PATIENCE, args=(1, 2)) == 3


def test_a_callback_acts_for_its_member() -> None:
    with first_of_two() as group:
        found: list[str] = []
        call_back(group, lambda _: found.append(context.endpoint().name))
        until(lambda: found == ["m0"], "the callback found another member")


def test_callbacks_are_called_when_the_member_closes() -> None:
    ended: list[BaseException | None] = []
    Gates.opened.clear()

    def note(done: Future[Any]) -> None:
        ended.append(done.exception())
        Gates.opened.set()

    def program(rt: Runtime) -> None:
        group = rt.group()
        if rt.rank == 0:
            group.rpc_async(0, wait_at_gate).add_done_callback(note)
        group.barrier(PATIENCE)

    launch(program)
    assert [type(each) for each in ended] == [ClosedError]


def wait_for_callback(to: str) -> int:
    """Wait for what a callback does, which is no wait for another member."""
    called = threading.Event()
    future: Future[int] = context.endpoint().call_async(to, add_late, PATIENCE, (1, 2))
    future.add_done_callback(lambda _: called.set())
    assert called.wait(PATIENCE)
    return future.result()


def test_a_function_may_wait_for_its_callback_on_the_last_thread() -> None:
    with first_of_two(handler_threads=1) as group:
        assert group.rpc_sync(1, wait_for_callback, timeout=PATIENCE, args=("m0",)) == 3
