"""Calls: how often they run, in which order, how long they wait, and how they fail."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pparallel.errors import CallTimeoutError, PeerLostError, RemoteError, SerializationError
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.transport import TransportConfig
from pparallel.testing.patience import AGES, PATIENCE, until
from pparallel.testing.suite import changed, requires
from pparallel.testing.threads import in_threads
from pparallel.testing.transport.base import TransportTests
from pparallel.testing.transport.called import (
    add,
    add_and_note,
    add_late,
    bounce,
    fail,
    fail_unfriendly,
    give_back,
    note,
    noted,
    open_gate,
    wait_at_gate,
)

if TYPE_CHECKING:
    from pparallel.builder import Runtime


def every_call_is_answered_once(rt: Runtime, count: int) -> None:
    group = rt.group()
    others = [name for name in rt.members if name != rt.name]
    to = [others[n % len(others)] for n in range(count)]
    slow = group.rpc_async(others[0], wait_at_gate)  # the replies to those behind it come first
    # What has no name is a request of its own; of the others, many are one.
    functions = (add_and_note, lambda a, b: add_and_note(a, b))
    futures = [
        group.rpc_async(to[n], functions[n // 2 % 2], args=(n, rt.rank)) for n in range(count)
    ]
    assert [future.wait() for future in futures] == [n + rt.rank for n in range(count)]
    group.barrier(PATIENCE)
    here, size = rt.rank, rt.world_size
    expected = [
        (n, rank)
        for rank in range(size)
        for n in range(count)
        if rank != here and _others(rank, size)[n % (size - 1)] == here
    ]
    assert sorted(noted()) == sorted(expected), "not every call was run exactly once"
    open_gate()
    assert slow.wait() == others[0]


def _others(rank: int, size: int) -> list[int]:
    return [each for each in range(size) if each != rank]


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


def timeouts(rt: Runtime) -> None:
    group = rt.group()
    if rt.rank == 0:
        with pytest.raises(CallTimeoutError):
            group.rpc_sync(1, wait_at_gate, timeout=0.05)
        future = group.rpc_async(1, wait_at_gate, timeout=0.05)
        with pytest.raises(TimeoutError):
            future.wait()
        with pytest.raises(ValueError, match="None for no limit"):
            group.rpc_sync(1, add, timeout=-2, args=(1, 1))
        unlimited = group.rpc_async(1, wait_at_gate, timeout=None)
        group.rpc_sync(1, open_gate)
        assert unlimited.wait(PATIENCE) == rt.members[1]


def time_limits_that_are_long(rt: Runtime) -> None:
    group = rt.group()
    if rt.rank == 0:
        assert group.rpc_async(1, add_late, timeout=AGES, args=(1, 2)).wait(AGES) == 3
        assert group.rpc_sync(1, add_late, timeout=AGES, args=(1, 2)) == 3
    group.barrier(AGES)


def a_member_leaves(rt: Runtime) -> list[str]:
    group = rt.group()
    if rt.rank == 2:
        group.barrier(PATIENCE)
        return []
    assert sorted(rt.transport.members()) == sorted(rt.members)
    lost: list[str] = []
    group.when_lost(lambda name, _: lost.append(name))
    waiting = group.rpc_async(2, wait_at_gate)
    group.barrier(PATIENCE)
    until(lambda: bool(lost), "a member that left was not reported")
    with pytest.raises(PeerLostError, match=rt.members[2]):
        waiting.wait()
    for call in (group.rpc_sync, group.rpc_async):
        with pytest.raises(PeerLostError, match=rt.members[2]):
            _ended(call(2, add, args=(1, 1)))
    assert sorted(rt.transport.members()) == sorted(rt.members[:2])
    assert group.meet("looked", PATIENCE) == rt.members[:2]
    return [name for name in lost if name == rt.members[2]]


def _ended(future: object) -> None:
    future.wait()  # type: ignore[attr-defined]


def end_while_others_wait(rt: Runtime, directory: str) -> None:
    group = rt.group()
    if rt.rank == 1:
        for rank in (0, 2):
            until(lambda rank=rank: group.is_registered(f"ready {rank}"), "one did not start")  # type: ignore[misc]
        message = "the first failure"
        raise KeyError(message)
    calling = threading.Event()

    def wait(thread: int) -> str:
        error: BaseException | None = None
        try:
            if thread == 0:
                error = group.rpc_async(1, wait_at_gate, timeout=None).exception(PATIENCE)
            else:
                calling.set()
                group.rpc_sync(1, wait_at_gate, timeout=None)
        except Exception as raised:  # noqa: BLE001 - its type is what is looked at
            error = raised  # at once, where the end has come before the call
        return type(error).__name__

    def tell(thread: int) -> str:
        if thread < 2:
            return wait(thread)
        assert calling.wait(PATIENCE)
        group.register(f"ready {rt.rank}", add)
        return ""

    Path(directory, rt.name).write_text(" ".join(in_threads(3, tell)))


def many_threads(rt: Runtime, count: int) -> None:
    group = rt.group()

    def call(thread: int) -> list[int]:
        first = 1000 * thread
        return [group.rpc_sync(1 - rt.rank, add, args=(first + n, 1)) for n in range(count)]

    expected = [[1000 * thread + n + 1 for n in range(count)] for thread in range(8)]
    assert in_threads(8, call) == expected
    group.barrier(PATIENCE)


def remote_exceptions(rt: Runtime) -> None:
    group = rt.group()
    if rt.rank == 0:
        with pytest.raises(LookupError, match="far away") as caught:
            group.rpc_sync(1, fail, args=("far away",))
        cause = caught.value.__cause__
        assert isinstance(cause, RemoteError)
        assert cause.member == rt.members[1]
        assert "def fail" in cause.traceback or "raise LookupError" in cause.traceback
        with pytest.raises(RemoteError, match="UnfriendlyError: 1 and 2"):
            group.rpc_async(1, fail_unfriendly).wait()
        with pytest.raises(LookupError, match="later"):
            group.remote(1, fail, args=("later",)).to_here()
        with pytest.raises(SerializationError, match=r"args\[0\] \(threading.Lock\)"):
            group.rpc_sync(1, add, args=(threading.Lock(), 1))
        with pytest.raises(SerializationError):
            group.rpc_sync(1, threading.Lock)
        with pytest.raises(ValueError, match="is not in group"):
            group.rpc_sync("nobody", add, args=(1, 1))


def calls_that_differ(rt: Runtime, count: int) -> None:
    import torch

    group = rt.group()
    group.barrier(PATIENCE)
    other = rt.members[1 - rt.rank]

    def made(function: Any, n: int | None) -> Any:
        return group.rpc_async(other, function, args=(n,))

    futures = []
    for n in range(count):  # without a pause, so that they are carried together where they may be
        futures += [made(give_back, n), made(fail, n), made(bytes, 1000 * n), made(torch.arange, n)]
        futures += [made(lambda n: -n, n), made(give_back, None)]
    if rt.rank == 0:
        assert futures[1].exception() is not None  # out of order
    for n in range(count):
        plain, failed, large, tensor, closure, nothing = futures[6 * n : 6 * n + 6]
        assert plain.wait() == n
        with pytest.raises(LookupError, match=rf"^{n}$"):
            failed.wait()
        is_whole = large.wait() == bytes(1000 * n)
        assert is_whole, f"call {n} has another result"  # which pytest must not list
        assert torch.equal(tensor.wait(), torch.arange(n))
        assert closure.wait() == -n
        assert nothing.wait() is None
    group.barrier(PATIENCE)


def calls_that_wait_for_later_ones(rt: Runtime, count: int) -> None:
    group = rt.group()
    group.barrier(PATIENCE)
    if rt.rank == 0:
        # Those behind have results, and what it waits for among them, before it ends.
        quick = [group.rpc_async(1, add, args=(n, 1)) for n in range(count)]
        first = group.rpc_async(1, wait_at_gate)
        more = [group.rpc_async(1, add, args=(n, 2)) for n in range(count)]
        assert [each.wait(PATIENCE) for each in quick + more] == [
            *range(1, count + 1),
            *range(2, count + 2),
        ]
        assert not first.done()
        opens = group.rpc_async(1, open_gate)
        assert first.wait(PATIENCE) == rt.members[1]
        assert opens.wait(PATIENCE) is None
        done: list[int] = []
        for n in range(count):  # nobody waits for these, and they come all the same
            group.rpc_async(1, add, args=(n, 3)).add_done_callback(
                lambda future: done.append(future.result())
            )
        until(lambda: len(done) == count, "what nobody waits for did not come")
        assert sorted(done) == list(range(3, count + 3))
    group.barrier(PATIENCE)


def calls_in_a_circle(rt: Runtime) -> None:
    group = rt.group()
    other = rt.members[1 - rt.rank]
    group.barrier(PATIENCE)
    names = [rt.name, other] * 4
    assert group.rpc_sync(other, bounce, args=(rt.name, 7)) == [names[1], *names[:7]]
    group.barrier(PATIENCE)


def back_pressure(rt: Runtime) -> None:
    group = rt.group()
    if rt.rank == 1:
        until(lambda: group.is_registered("full"), "the sender did not go on")
        open_gate()
        group.barrier(PATIENCE)
        return
    futures = [group.rpc_async(1, wait_at_gate)]
    sent = threading.Event()

    def send(thread: int) -> None:
        if thread == 1:
            assert not sent.wait(0.2), "the sender was not held back"
            group.register("full", add)
            return
        futures.extend(group.rpc_async(1, len, args=(bytes(100_000),)) for _ in range(20))
        sent.set()

    in_threads(2, send)
    assert [future.wait() for future in futures[1:]] == [100_000] * 20
    group.barrier(PATIENCE)


class CallTests(TransportTests):
    """Tests of single calls, through the group of all members."""

    def test_every_call_is_answered_once(
        self, config: TransportConfig, launcher: LauncherConfig
    ) -> None:
        target = every_call_is_answered_once
        assert self.launch(launcher, config, 3, target, 2000) == [None] * 3

    @requires("ordered")
    def test_order(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        assert self.launch(launcher, config, 2, order, 500) == [None] * 2

    def test_timeout(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        assert self.launch(launcher, config, 2, timeouts) == [None] * 2

    def test_a_time_limit_may_be_long(
        self, config: TransportConfig, launcher: LauncherConfig
    ) -> None:
        assert self.launch(launcher, config, 2, time_limits_that_are_long) == [None] * 2

    def test_a_member_that_leaves(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        members = ["m0", "m1", {"name": "m2", "override": {"close_timeout": 0.05}}]
        lost = self.launch_named(launcher, config, members, a_member_leaves)
        assert lost == [["m2"], ["m2"], []]

    def test_nothing_waits_after_the_end(
        self, config: TransportConfig, launcher: LauncherConfig, tmp_path: Path
    ) -> None:
        with pytest.raises(KeyError, match="the first failure"):
            self.launch(launcher, config, 3, end_while_others_wait, str(tmp_path))
        for name in ("m0", "m2"):
            assert Path(tmp_path, name).read_text().split() == ["ClosedError"] * 2, name

    def test_many_threads(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        assert self.launch(launcher, config, 2, many_threads, 100) == [None] * 2

    def test_remote_exceptions(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        assert self.launch(launcher, config, 2, remote_exceptions) == [None] * 2

    def test_calls_that_differ(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        assert self.launch(launcher, config, 2, calls_that_differ, 40) == [None] * 2

    def test_results_do_not_wait_for_one_another(
        self, config: TransportConfig, launcher: LauncherConfig
    ) -> None:
        few = changed(config, handler_threads=2)
        assert self.launch(launcher, few, 2, calls_that_wait_for_later_ones, 70) == [None] * 2

    def test_calls_in_a_circle(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        narrow = changed(config, handler_threads=1)
        assert self.launch(launcher, narrow, 2, calls_in_a_circle) == [None] * 2

    def test_back_pressure(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        narrow = changed(config, max_in_flight=400_000, handler_threads=1)
        assert self.launch(launcher, narrow, 2, back_pressure) == [None] * 2
