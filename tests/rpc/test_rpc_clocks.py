"""What keeps the time of calls, and locks that a signal's handler or a finalizer may meet."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from exhausted import no_threads
from rpc_members import add, between, launch

from pparallel import Runtime
from pparallel.errors import PeerLostError, ResourceExhaustedError
from pparallel.runtime.pending import Pending
from pparallel.runtime.rpc.group import RpcGroup
from pparallel.testing.patience import PATIENCE


def test_a_call_that_is_sent_again_fails_once_without_threads() -> None:
    def program(rt: Runtime, group: RpcGroup) -> Any:
        call: dict[str, Any] = {"timeout": PATIENCE, "args": (1, 2), "idempotent": True}
        with no_threads(f"{rt.name}-retries"), pytest.raises(ResourceExhaustedError):
            group.rpc_sync(1, add, **call)
        return group.rpc_sync(1, add, **call)

    assert launch(between(program))[0] == 3


def test_references_are_made_without_threads_and_released_later() -> None:
    def program(rt: Runtime, group: RpcGroup) -> Any:
        with no_threads(f"{rt.name}-releaser"):
            ref = group.remote(1, add, args=(1, 2))
        assert ref.to_here(PATIENCE) == 3
        return group.remote(1, add, args=(1, 3)).to_here(PATIENCE)

    assert launch(between(program))[0] == 4


def test_each_future_of_a_lost_member_fails_with_an_error_of_its_own() -> None:
    pending: Pending[None] = Pending("transport")
    futures = [pending.add("other", None) for _ in range(3)]
    pending.lose("other", "died")
    errors = [each.exception(PATIENCE) for each in futures]
    assert {type(each) for each in errors} == {PeerLostError}
    assert len({id(each) for each in errors}) == 3
    pending.close()


def interrupting(action: Callable[[], object]) -> ExitStack:
    """Have *action* run every 2 ms of CPU time in the main thread."""
    stack = ExitStack()
    before = signal.signal(signal.SIGALRM, lambda *_: action())
    stack.callback(signal.signal, signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    stack.callback(signal.setitimer, signal.ITIMER_REAL, 0)
    return stack


def test_requests_may_be_counted_in_a_signal_handler() -> None:
    pending: Pending[None] = Pending("transport")
    until = time.monotonic() + 0.3
    many = 0
    with interrupting(lambda: pending.add("other", 30 - time.monotonic() % 20).set_result(None)):
        while time.monotonic() < until:
            many += 1
            pending.add("other", max(1.0, 20 - many / 1000)).set_result(None)
    pending.close()
    assert not len(pending)
