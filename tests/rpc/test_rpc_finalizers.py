"""Finalizers that wait for a call, on whatever thread the garbage collector runs them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rpc_members import between, launch, same

from pparallel import Runtime
from pparallel.runtime.rpc import RpcGroup
from pparallel.testing.patience import PATIENCE

ROUNDS = 50  #: of calls in the midst of which finalizers wait
RECEIVE = "m0-", "m1-", "lane-of-", "pparallel-"  #: how the names of threads of the system begin
REFUSED = "cannot wait for an answer before it goes on: have a finalizer"


@contextmanager
def waiting_finalizers(group: RpcGroup, most: int) -> Iterator[dict[str, list[str]]]:
    """Wait for calls of *group* on each thread that receives, in the midst of what it does.

    Args:
        group: whose member 1 is called.
        most: how often on each thread.

    Yields:
        What came of it, by the name of the thread.
    """
    found: dict[str, list[str]] = {}
    local = threading.local()

    def wait(phase: str, _: object) -> None:
        name = threading.current_thread().name
        if not name.startswith(RECEIVE) or name.endswith("-handler"):
            return
        come = found.setdefault(name, [])
        if phase != "start" or len(come) >= most or getattr(local, "waits", False):
            return
        local.waits = True
        try:
            come.append(outcome(group, len(come)))
        finally:
            local.waits = False

    before = gc.get_threshold()
    gc.callbacks.append(wait)
    gc.set_threshold(1)
    try:
        yield found
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(wait)


def outcome(group: RpcGroup, number: int) -> str:
    """Call and wait, one way or the other; return the result, or why not."""
    try:
        if number % 2:
            value = group.rpc_sync(1, same, args=("done",), timeout=PATIENCE)
        else:
            value = group.rpc_async(1, same, args=("done",), timeout=PATIENCE).wait()
    except RuntimeError as error:
        return str(error)
    return str(value)


@pytest.mark.parametrize("backend", ["ipc", "zmq"])
def test_nobody_is_deaf_where_a_finalizer_waits(backend: str) -> None:
    def program(rt: Runtime, group: RpcGroup) -> dict[str, list[str]]:
        with waiting_finalizers(group, 100) as found:
            for _ in range(ROUNDS):
                futures = [group.rpc_async(1, same, args=(n,), timeout=PATIENCE) for n in range(40)]
                assert [each.wait() for each in futures] == list(range(40))
                assert group.rpc_sync(1, same, args=(3,), timeout=PATIENCE) == 3
        return found

    found = launch(between(program), backend=backend)[0]
    ended = [each for come in found.values() for each in come]
    assert all(each == "done" or REFUSED in each for each in ended)
    assert any(REFUSED in each for each in ended)
