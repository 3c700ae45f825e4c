"""Calls: how often they run, in which order, how long they wait, and how they fail."""

from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    DirectoryError,
    PeerLostError,
    PparallelError,
    RemoteError,
    SerializationError,
)
from pparallel.runtime.rpc import RemoteRef, RpcGroup
from pparallel.testing.patience import AGES, PATIENCE, until
from pparallel.testing.suite import requires
from pparallel.testing.threads import in_threads
from pparallel.testing.transport.base import Run, TransportTests, first_member
from pparallel.testing.transport.called import (
    add,
    add_and_note,
    add_late,
    bounce,
    fail,
    give_back,
    note,
    noted,
    open_gate,
    wait_at_gate,
)

if TYPE_CHECKING:
    from pparallel.builder import Runtime

#: A member that ends before the others do not wait for it.
LEAVES = {"name": "m2", "override": {"close_timeout": 0.05}}


class Unsendable:
    """Raises when it is serialised, or where it arrives."""

    def __init__(self, arrives: bool) -> None:
        self.arrives = arrives

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        if self.arrives:
            return fail, ("it cannot be rebuilt",)
        raise LookupError("it cannot be sent")


class UnfriendlyError(Exception):
    """Cannot be rebuilt from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def fail_unfriendly() -> None:
    """Raise what pickle cannot rebuild."""
    raise UnfriendlyError(1, 2)


def leave() -> None:
    """Exit, as far as a called function can."""
    raise SystemExit(3)


def every_call_is_answered_once(rt: Runtime, count: int) -> None:
    group = rt.group()
    others = [name for name in rt.members if name != rt.name]
    slow = group.rpc_async(others[0], wait_at_gate)  # the replies to those behind it come first
    # What has no name is a request of its own; of the others, many are one.
    functions = (add_and_note, lambda a, b: add_and_note(a, b))
    futures = [
        group.rpc_async(others[n % 2], functions[n // 2 % 2], args=(n, rt.rank))
        for n in range(count)
    ]
    assert [future.wait() for future in futures] == [n + rt.rank for n in range(count)]
    group.barrier(PATIENCE)
    ranks = [rank for rank in range(3) if rank != rt.rank]
    place = {rank: [each for each in range(3) if each != rank].index(rt.rank) for rank in ranks}
    expected = [(n, rank) for rank in ranks for n in range(count) if n % 2 == place[rank]]
    assert sorted(noted()) == sorted(expected), "not every call was run exactly once"
    open_gate()
    assert slow.wait() == others[0]


def order(rt: Runtime, count: int) -> None:
    group = rt.group()

    def send(thread: int) -> None:
        for n in range(count):
            if n % 50 == 49:
                group.rpc_sync(1, note, args=((thread, n),))
            else:
                group.rpc_async(1, note, args=((thread, n),))

    if rt.rank == 0:
        in_threads(3, send)
        found = defaultdict(list)
        for thread, n in group.rpc_sync(1, noted):
            found[thread].append(n)
        assert found == {thread: list(range(count)) for thread in range(3)}


@first_member
def timeouts(group: RpcGroup) -> None:
    with pytest.raises(CallTimeoutError):
        group.rpc_sync(1, wait_at_gate, timeout=0.05)
    with pytest.raises(TimeoutError):
        group.rpc_async(1, wait_at_gate, timeout=0.05).wait()
    with pytest.raises(ValueError, match="None for no limit"):
        group.rpc_sync(1, add, timeout=-2, args=(1, 1))
    unlimited = group.rpc_async(1, wait_at_gate, timeout=None)
    group.rpc_sync(1, open_gate)
    assert unlimited.wait(PATIENCE) == "m1"
    assert group.rpc_async(1, add_late, args=(1, 2), timeout=AGES).wait(AGES) == 3
    assert group.rpc_sync(1, add_late, args=(1, 2), timeout=AGES) == 3


def a_member_leaves(rt: Runtime) -> list[str]:
    group = rt.group()
    if rt.rank == 2:
        group.register("mine", add)
        group.pair("value", 1)
    group.barrier(PATIENCE)
    if rt.rank == 2:
        group.barrier(PATIENCE)
        return []
    assert sorted(rt.transport.members()) == sorted(rt.members)
    lost: list[str] = []
    group.when_lost(lambda name, _: lost.append(name))
    waiting = group.rpc_async(2, wait_at_gate)
    # One of them remembers where the service was.
    assert rt.rank != 1 or group.registered_sync("mine", args=(1, 2)) == 3
    group.barrier(PATIENCE)
    until(lambda: bool(lost), "a member that left was not reported")
    calls: list[Callable[[], object]] = [
        waiting.wait,
        lambda: group.rpc_sync(2, add, args=(1, 1)),
        lambda: group.rpc_async(2, add, args=(1, 1)).wait(),
    ]
    for call in calls:
        with pytest.raises(PeerLostError, match=rt.members[2]):
            call()
    assert sorted(rt.transport.members()) == sorted(rt.members[:2])
    # The first member, which keeps them, may see the end a moment later than this one.
    until(lambda: not group.is_paired("value"), "the name of a member that left was not freed")
    with pytest.raises(DirectoryError, match="not registered in"):
        group.registered_sync("mine", args=(1, 1))
    assert group.meet("looked", PATIENCE) == rt.members[:2]
    if rt.rank == 1:
        group.register("mine", add)
        group.pair("value", 2)
    return [name for name in lost if name == rt.members[2]]


def end_while_others_wait(rt: Runtime, directory: str) -> None:
    group = rt.group()
    if rt.rank == 1:
        for name in ("ready 0", "ready 2"):
            until(lambda name=name: group.is_registered(name), "one did not start")  # type: ignore[misc]
        message = "the first failure"
        raise KeyError(message)
    waiting = group.rpc_async(1, wait_at_gate, timeout=None)
    group.register(f"ready {rt.rank}", add)
    found = []
    for wait in (partial(group.rpc_sync, 1, wait_at_gate, timeout=None), waiting.result):
        try:
            wait()
        except Exception as error:  # noqa: BLE001 - its type is what is looked at
            found.append(type(error).__name__)
    Path(directory, rt.name).write_text(" ".join(found))


@first_member
def remote_exceptions(group: RpcGroup) -> None:
    with pytest.raises(LookupError, match="far away") as caught:
        group.rpc_sync(1, fail, args=("far away",))
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteError)
    assert cause.member == "m1"
    assert "def fail" in cause.traceback or "raise LookupError" in cause.traceback
    with pytest.raises(RemoteError, match="UnfriendlyError: 1 and 2"):
        group.rpc_async(1, fail_unfriendly).wait()
    with pytest.raises(LookupError, match="later"):
        group.remote(1, fail, args=("later",)).to_here()
    with pytest.raises(SerializationError, match=r"args\[0\] \(threading.Lock\)"):
        group.rpc_sync(1, add, args=(threading.Lock(), 1))
    with pytest.raises(ValueError, match="is not in group"):
        group.rpc_sync("nobody", add, args=(1, 1))
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (give_back, (Unsendable(False),)),
        (give_back, (Unsendable(True),)),
        (Unsendable, (False,)),
        (Unsendable, (True,)),
        (leave, ()),
    ]
    for function, args in calls:
        for call in (group.rpc_sync, lambda *a: group.rpc_async(*a).wait()):
            with pytest.raises((PparallelError, SystemExit)) as raised:
                call(1, function, args)
            assert not isinstance(raised.value, CallTimeoutError), f"{function} hangs"
            assert group.rpc_sync(1, add, args=(1, 2)) == 3
    with pytest.raises(SerializationError):
        group.remote(1, Unsendable, args=(False,)).to_here()


def calls_that_differ(rt: Runtime, count: int) -> None:
    import torch

    group = rt.group()
    to = rt.members[(rt.rank + 1) % rt.world_size]
    group.barrier(PATIENCE)
    # The first result is large: two that are not the first may be connecting still.
    assert len(group.rpc_sync(to, bytes, (1_000_000,))) == 1_000_000
    # Without a pause, so that they are carried together where they may be.
    futures = [
        group.rpc_async(to, function, args=(argument,))
        for n in range(count)
        for function, argument in (
            (give_back, n),
            (fail, n),
            (bytes, 1000 * n),
            (torch.arange, n),
            (lambda n: -n, n),
            (give_back, None),
        )
    ]
    if rt.rank == 0:
        assert futures[1].exception() is not None  # out of order
    for n in range(count):
        plain, failed, large, tensor, closure, nothing = futures[6 * n : 6 * n + 6]
        assert plain.wait() == n
        with pytest.raises(LookupError, match=rf"^{n}$"):
            failed.wait()
        assert hash(large.wait()) == hash(bytes(1000 * n))  # which pytest does not list
        assert torch.equal(tensor.wait(), torch.arange(n))
        assert closure.wait() == -n
        assert nothing.wait() is None
    group.barrier(PATIENCE)


@first_member
def calls_that_wait_for_later_ones(group: RpcGroup, count: int) -> None:
    # Those behind have results, and what it waits for among them, before it ends.
    quick = [group.rpc_async(1, add, args=(n, 1)) for n in range(count)]
    first = group.rpc_async(1, wait_at_gate)
    quick += [group.rpc_async(1, add, args=(n, 1)) for n in range(count)]
    assert [each.wait(PATIENCE) for each in quick] == [*range(1, count + 1)] * 2
    assert not first.done()
    opens = group.rpc_async(1, open_gate)
    assert first.wait(PATIENCE) == "m1"
    assert opens.wait(PATIENCE) is None
    done: list[int] = []
    for n in range(count):  # nobody waits for these, and they come all the same
        future = group.rpc_async(1, add, args=(n, 0))
        future.add_done_callback(lambda future: done.append(future.result()))
    until(lambda: len(done) == count, "what nobody waits for did not come")
    assert sorted(done) == [*range(count)]


def calls_in_a_circle(rt: Runtime, size: int) -> None:
    group = rt.group()
    other = rt.members[1 - rt.rank]
    group.barrier(PATIENCE)
    names = [rt.name, other] * 4
    found = group.rpc_sync(other, bounce, args=(rt.name, 7, bytes(size)))
    assert found == [names[1], *names[:7]]
    group.barrier(PATIENCE)


def a_member_forks(rt: Runtime) -> None:
    group, other = rt.group(), 1 - rt.rank
    ref, own = (group.remote(each, add, args=(1, 2)) for each in (other, rt.rank))
    assert ref.to_here() == own.local_value() == 3
    group.barrier(PATIENCE)
    if rt.rank == 0:
        child = os.fork()
        if not child:
            _use_copies(rt, group, ref, own)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child used its copy"
    group.barrier(PATIENCE)
    assert ref.to_here() == 3
    assert group.rpc_sync(other, add, args=(1, 2)) == 3
    assert len(group.rpc_async(other, bytes, args=(1_000_000,)).wait()) == 1_000_000
    group.barrier(PATIENCE)


def _use_copies(rt: Runtime, group: RpcGroup, ref: RemoteRef[int], own: RemoteRef[int]) -> None:
    """Try what a forked child must not do, and end it; 0: all was refused."""
    uses: list[Callable[[], object]] = [
        lambda: group.rpc_sync(1, add, args=(1, 2)),
        lambda: group.rpc_async(1, add, args=(1, 2)).wait(),
        lambda: group.barrier(PATIENCE),
        lambda: group.register("mine", add),
        ref.to_here,
        own.local_value,
        rt.close,
    ]
    status = 1
    try:
        signal.alarm(int(PATIENCE))
        for use in uses:
            with pytest.raises(ClosedError, match="process"):
                use()
        status = 0
    finally:
        os._exit(status)


class CallTests(TransportTests):
    """Tests of single calls, through the group of all members."""

    def test_every_call_is_answered_once(self, run: Run) -> None:
        run(every_call_is_answered_once, 2000, members=3)

    @requires("ordered")
    def test_order(self, run: Run) -> None:
        run(order, 500)

    def test_timeout(self, run: Run) -> None:
        run(timeouts)

    def test_a_member_that_leaves(self, run: Run) -> None:
        assert run(a_member_leaves, members=["m0", "m1", LEAVES]) == [["m2"], ["m2"], []]

    def test_nothing_waits_after_the_end(self, run: Run, tmp_path: Path) -> None:
        with pytest.raises(KeyError, match="the first failure"):
            run(end_while_others_wait, str(tmp_path), members=3)
        for name in ("m0", "m2"):
            assert Path(tmp_path, name).read_text().split() == ["ClosedError"] * 2, name

    def test_a_forked_child_closes_its_copy(self, run: Run) -> None:
        run(a_member_forks)

    def test_remote_exceptions(self, run: Run) -> None:
        run(remote_exceptions)

    def test_calls_that_differ(self, run: Run) -> None:
        run(calls_that_differ, 40, members=3)

    def test_results_do_not_wait_for_one_another(self, run: Run) -> None:
        run(calls_that_wait_for_later_ones, 70, handler_threads=2)

    @pytest.mark.parametrize(("threads", "size"), [(1, 60_000), (4, 300_000)])
    def test_calls_in_a_circle(self, run: Run, threads: int, size: int) -> None:
        run(calls_in_a_circle, size, handler_threads=threads, max_in_flight=100_000)
