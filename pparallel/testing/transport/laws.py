"""Time-outs that are kept, and members that go on, whatever fails or is full meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typing_extensions import override

from pparallel.errors import CallTimeoutError, PparallelError, SerializationError
from pparallel.runtime.rpc import RpcGroup
from pparallel.testing.transport.base import Run, TransportTests, first_member
from pparallel.testing.transport.called import (
    add,
    give_back,
    hold,
    note,
    noted,
    open_gate,
    wait_at_gate,
)

SOON = 2.0  #: seconds beyond a time-out within which it must have been kept, on a busy computer


class Unsendable:
    """Raises when it is serialised, or where it arrives."""

    def __init__(self, arrives: bool) -> None:
        self.arrives = arrives

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        if self.arrives:
            return _refuse, ()
        raise LookupError("it cannot be sent")


def _refuse() -> None:
    raise LookupError("it cannot be rebuilt")


def leave() -> None:
    raise SystemExit(3)


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


@first_member
def errors_of_all_kinds(group: RpcGroup) -> None:
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (give_back, (Unsendable(False),)),
        (give_back, (Unsendable(True),)),
        (Unsendable, (False,)),
        (Unsendable, (True,)),
        (leave, ()),
    ]
    for function, args in calls:
        for call in (group.rpc_sync, lambda *a: group.rpc_async(*a).wait()):
            with pytest.raises((PparallelError, SystemExit)) as caught:
                call(1, function, args)
            assert not isinstance(caught.value, CallTimeoutError), f"{function} hangs"
            assert group.rpc_sync(1, add, args=(1, 2)) == 3
    with pytest.raises(SerializationError):
        group.remote(1, Unsendable, args=(False,)).to_here()


class LawTests(TransportTests):
    """Tests of what holds while something fails or is full."""

    def test_a_timeout_is_kept_under_back_pressure(self, run: Run) -> None:
        run(under_back_pressure, max_in_flight=100_000, handler_threads=4)

    def test_one_slow_member_holds_up_no_other(self, run: Run) -> None:
        run(beside_a_slow_one, members=3, max_in_flight=100_000)

    def test_a_timeout_is_kept_in_queues(self, run: Run) -> None:
        run(in_queues, handler_threads=1)

    def test_nobody_is_deaf_after_an_error(self, run: Run) -> None:
        run(errors_of_all_kinds)
