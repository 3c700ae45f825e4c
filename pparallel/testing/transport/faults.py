"""What runs, and what is answered in time, whatever is lost, comes twice, fails or is full."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pparallel.errors import CallTimeoutError, PeerLostError
from pparallel.interfaces.transport import TransportConfig
from pparallel.runtime.rpc import RpcGroup
from pparallel.testing.chaos import chaotic
from pparallel.testing.patience import PATIENCE
from pparallel.testing.threads import in_threads
from pparallel.testing.transport.alone import SOON
from pparallel.testing.transport.base import Run, TransportTests, first_member
from pparallel.testing.transport.called import (
    Holder,
    add_and_note,
    add_listed,
    fail,
    give_back,
    hold,
    note,
    noted,
    open_gate,
    read_ref,
    wait_at_gate,
)

if TYPE_CHECKING:
    from pparallel.builder import Runtime

#: chances of all faults at once
FAULTS = {
    "drop_request": 0.1,
    "drop_reply": 0.1,
    "fail_running": 0.1,
    "duplicate": 0.3,
    "delay": 0.3,
}


@first_member
def sent_again(group: RpcGroup, count: int) -> None:
    group.rpc_sync(1, registered, args=(group,), idempotent=True)

    def call(thread: int) -> list[int]:
        arguments = [(2 * count * thread + n, thread) for n in range(2 * count)]
        futures = [
            group.rpc_async(1, add_and_note, args=each, idempotent=True)
            for each in arguments[:count]
        ]
        at_once = [
            group.registered_sync("add", args=each, idempotent=True) for each in arguments[count:]
        ]
        return [future.wait() for future in futures] + at_once

    expected = [(n, n // (2 * count)) for n in range(3 * 2 * count)]
    answers = [answer for answers in in_threads(3, call) for answer in answers]
    assert answers == [n + thread for n, thread in expected]
    ref = group.remote(1, Holder, args=(5,), idempotent=True)
    assert group.rpc_sync(1, read_ref, args=(ref,), idempotent=True).value == 5
    with pytest.raises(LookupError, match="far away"):
        group.rpc_sync(1, fail, args=("far away",), idempotent=True)
    ran = group.rpc_sync(1, noted, idempotent=True)
    assert sorted(ran) == expected, "not every call was run exactly once"


def registered(group: RpcGroup) -> None:
    group.register("add", add_and_note)


@first_member
def not_sent_again(group: RpcGroup, count: int) -> None:
    errors: list[BaseException | None] = []
    for start in range(0, count, 4):
        numbers = range(start, start + 4)
        # Each list goes by itself, so that the seed's faults meet the same calls each time.
        futures = [group.rpc_async(1, add_listed, timeout=0.3, args=([n, 0],)) for n in numbers]
        errors += [future.exception(PATIENCE) for future in futures]
    assert {type(each) for each in errors} == {type(None), CallTimeoutError, PeerLostError}
    ran = Counter(n for n, _ in group.rpc_sync(1, noted, idempotent=True))
    assert max(ran.values()) == 1, "a call ran twice"
    answered = {n for n, error in enumerate(errors) if error is None}
    assert answered < set(ran) < set(range(count))


def never_answered(rt: Runtime) -> None:
    group = rt.group()
    group.barrier(PATIENCE)
    if rt.rank == 0:
        with pytest.raises(CallTimeoutError, match=r"0\.3 s"):
            group.rpc_sync(1, note, timeout=0.3, args=(1,), idempotent=True)
    group.barrier(PATIENCE)
    assert rt.rank == 0 or noted() == [1]


@contextmanager
def times_out(timeout: float) -> Iterator[None]:
    """Check that what is inside ends with its time-out."""
    began = time.monotonic()
    with pytest.raises(CallTimeoutError):
        yield
    took = time.monotonic() - began
    assert took < timeout + SOON, f"a time-out of {timeout} s was kept after {took:.1f} s"


@first_member
def under_back_pressure(group: RpcGroup) -> None:
    large = bytes(60_000)
    waiting = [group.rpc_async(1, wait_at_gate, args) for args in ((), (large,))]
    with times_out(0.3):
        group.rpc_sync(1, give_back, (large,), timeout=0.3)
    with times_out(0.3):
        group.rpc_async(1, give_back, (large,), timeout=0.3).wait()
    with times_out(0.3):
        group.rpc_sync(1, wait_at_gate, timeout=0.3)
    group.rpc_sync(1, open_gate)
    assert waiting[0].wait() == "m1"
    assert len(waiting[1].wait()) == len(group.rpc_sync(1, give_back, (large,))) == len(large)


@first_member
def beside_a_slow_one(group: RpcGroup) -> None:
    large = bytes(60_000)
    stuck = group.rpc_async(1, wait_at_gate, (large,))
    waits = threading.Thread(target=group.rpc_async, args=(1, wait_at_gate, (large,)))
    waits.start()
    for _ in range(20):
        assert len(group.rpc_sync(2, give_back, (large,))) == len(large)
        assert len(group.rpc_async(2, give_back, (large,)).wait()) == len(large)
    assert waits.is_alive(), "the sender was not held back"
    group.rpc_sync(1, open_gate)
    stuck.wait()
    waits.join()


@first_member
def in_queues(group: RpcGroup) -> None:
    held = group.rpc_async(1, hold, (1.0,))
    for each in [group.rpc_async(1, note, (number,), timeout=0.2) for number in range(5)]:
        with times_out(0.2):
            each.wait()
    held.wait()
    assert group.rpc_sync(1, noted) == [], "calls ran whose time-outs had passed"


class FaultTests(TransportTests):
    """Tests of the RPC layer, with faults put between it and the transport, and of what is full."""

    @pytest.fixture
    def faulty(self, config: TransportConfig) -> Callable[..., TransportConfig]:
        return partial(chaotic, config, seed=5, retry_after=0.02, delay_at_most=0.01)

    def test_what_is_lost_is_sent_again(
        self, run: Run, faulty: Callable[..., TransportConfig]
    ) -> None:
        run(sent_again, 40, transport=faulty(**FAULTS))

    def test_nothing_runs_twice(self, run: Run, faulty: Callable[..., TransportConfig]) -> None:
        run(not_sent_again, 60, transport=faulty(**FAULTS))
        for fault in ("drop_reply", "fail_running"):
            run(never_answered, transport=faulty(**{fault: 1.0}))

    def test_a_timeout_is_kept_under_back_pressure(self, run: Run) -> None:
        run(under_back_pressure, max_in_flight=100_000, handler_threads=4)

    def test_one_slow_member_holds_up_no_other(self, run: Run) -> None:
        run(beside_a_slow_one, members=3, max_in_flight=100_000)

    def test_a_timeout_is_kept_in_queues(self, run: Run) -> None:
        run(in_queues, handler_threads=1)
