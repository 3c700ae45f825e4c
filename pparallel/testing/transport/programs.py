"""What the members of the transport suite's tests run: each takes its runtime first."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    DirectoryError,
    PeerLostError,
    RemoteError,
    SerializationError,
)
from pparallel.runtime.rpc import RpcGroup, current
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.transport.called import (
    Holder,
    add,
    bounce,
    fail,
    fail_unfriendly,
    fill,
    kept_values,
    note,
    noted,
    open_gate,
    read_ref,
    wait_at_gate,
)

if TYPE_CHECKING:
    from pparallel.builder import Runtime


def every_call_is_answered_once(rt: Runtime, count: int) -> None:
    group = rt.group()
    others = [name for name in rt.members if name != rt.name]
    futures = [
        (n, group.rpc_async(others[n % len(others)], add, args=(n, rt.rank))) for n in range(count)
    ]
    assert [future.wait() for n, future in futures] == [n + rt.rank for n, _ in futures]
    for name in others:
        group.rpc_sync(name, note, args=((rt.name, name),))
    group.barrier()
    assert sorted(noted()) == sorted((name, rt.name) for name in others)


def order(rt: Runtime, count: int) -> None:
    group = rt.group()
    if rt.rank == 0:
        for n in range(count):
            group.rpc_async(1, note, args=(n,))
        group.rpc_sync(1, note, args=(count,))
        assert group.rpc_sync(1, noted) == list(range(count + 1))


def receivers_own(rt: Runtime) -> None:
    group = rt.group()
    if rt.rank == 0:
        for size in (10, 100_000, 3_000_000):
            mine = bytearray(b"\1" * size)
            replies = [group.rpc_sync(to, fill, args=(mine, to + 1)) for to in (0, 1, 2)]
            assert replies == [bytes([to + 1]) * size for to in (0, 1, 2)]
            assert mine == b"\1" * size


def timeouts(rt: Runtime) -> None:
    group = rt.group()
    if rt.rank == 0:
        started = time.monotonic()
        with pytest.raises(CallTimeoutError):
            group.rpc_sync(1, wait_at_gate, timeout=0.05)
        future = group.rpc_async(1, wait_at_gate, timeout=0.05)
        with pytest.raises(TimeoutError):
            future.wait()
        assert time.monotonic() - started < PATIENCE
        with pytest.raises(ValueError, match="-1 for the default"):
            group.rpc_sync(1, add, timeout=-2, args=(1, 1))
        unlimited = group.rpc_async(1, wait_at_gate, timeout=0)
        group.rpc_sync(1, open_gate)
        assert unlimited.wait() == rt.members[1]


def a_member_leaves(rt: Runtime) -> list[str]:
    group = rt.group()
    if rt.rank == 2:
        group.register("mine", add)
        group.pair("value", 1)
        group.barrier()
        return []
    group.barrier()
    lost: list[str] = []
    group.when_lost(lambda name, _: lost.append(name))
    assert rt.rank != 1 or group.registered_sync("mine", args=(1, 2)) == 3
    waiting = group.rpc_async(2, wait_at_gate) if rt.rank == 1 else None
    until(lambda: bool(lost), "a member that left was not reported")
    if waiting is not None:
        with pytest.raises(PeerLostError, match=rt.members[2]):
            waiting.wait()
    with pytest.raises(PeerLostError, match=rt.members[2]):
        group.rpc_sync(2, add, args=(1, 1))
    with pytest.raises(DirectoryError, match="not registered in"):
        group.registered_sync("mine", args=(1, 1))
    until(lambda: not group.is_paired("value"), "the name of a member that left was not freed")
    group.meet("looked")
    if rt.rank == 1:
        group.register("mine", add)
        group.pair("value", 2)
    return lost


def end_while_others_wait(rt: Runtime) -> None:
    group = rt.group()
    if rt.rank == 1:
        until(lambda: group.is_registered("ready"), "the other member did not start")
        raise KeyError("the first failure")
    if rt.rank == 0:
        group.register("ready", add)
    group.rpc_sync(1, wait_at_gate, timeout=0)


def many_threads(rt: Runtime, count: int) -> None:
    group = rt.group()
    results: list[list[int]] = []
    token = current.endpoint()

    def call() -> None:
        with current.acting_for(token):
            results.append([group.rpc_sync(1 - rt.rank, add, args=(n, 1)) for n in range(count)])

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[n + 1 for n in range(count)]] * 8


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
        with pytest.raises(SerializationError, match="add"):
            group.rpc_sync(1, add, args=(threading.Lock(), 1))
        with pytest.raises(SerializationError):
            group.rpc_sync(1, threading.Lock)
        with pytest.raises(ValueError, match="is not in group"):
            group.rpc_sync("nobody", add, args=(1, 1))


def calls_in_a_circle(rt: Runtime) -> None:
    group = rt.group()
    other = rt.members[1 - rt.rank]
    group.barrier()
    names = [rt.name, other] * 4
    assert group.rpc_sync(other, bounce, args=(rt.name, 7)) == [names[1], *names[:7]]
    group.barrier()


def back_pressure(rt: Runtime) -> None:
    group = rt.group()
    if rt.rank == 1:
        until(lambda: group.is_registered("full"), "the sender did not go on")
        open_gate()
        group.barrier()
        return
    futures = [group.rpc_async(1, wait_at_gate)]
    sent = threading.Event()
    token = current.endpoint()

    def send() -> None:
        with current.acting_for(token):
            futures.extend(group.rpc_async(1, len, args=(bytes(100_000),)) for _ in range(20))
        sent.set()

    sender = threading.Thread(target=send)
    sender.start()
    assert not sent.wait(0.2), "the sender was not held back"
    group.register("full", add)
    sender.join()
    assert [future.wait() for future in futures[1:]] == [100_000] * 20
    group.barrier()


def references(rt: Runtime) -> None:
    group = rt.group()
    if rt.rank == 0:
        ref = group.remote(1, Holder, args=(5,))
        assert (ref.owner_name(), ref.owner(), ref.is_owner()) == (rt.members[1], 1, False)
        assert ref.rpc_sync().add(2) == 7
        assert ref.rpc_async().add(2).wait() == 9
        assert ref.remote().add(2).to_here() == 11
        assert ref.to_here().value == 11
        assert ref.confirmed_by_owner()
        with pytest.raises(RuntimeError, match="to_here"):
            ref.local_value()
        assert group.rpc_sync(2, read_ref, args=(ref,)).value == 11
        assert group.rpc_sync(1, read_ref, args=(ref,)).value == 11
        passed = group.remote(2, read_ref, args=(group.remote(1, add, args=(20, 3)),))
        assert passed.to_here() == 23
        del ref, passed
        until(lambda: group.rpc_sync(1, kept_values) == 0, "a value nobody holds was kept")
    group.barrier()


def pairs_and_services(rt: Runtime) -> None:
    group = rt.group()
    group.barrier()
    if rt.rank == 1:
        group.pair("holder", Holder(1))
        group.register("add", add)
    group.barrier()
    if rt.rank == 0:
        assert group.is_paired("holder")
        assert group.get_paired("holder").to_here().value == 1
        with pytest.raises(DirectoryError, match="already paired to Group"):
            group.pair("holder", 2)
        with pytest.raises(DirectoryError, match="not paired to"):
            group.unpair("holder")
        with pytest.raises(DirectoryError, match="not found on Group"):
            group.get_paired("nothing")
        with pytest.raises(DirectoryError, match="already registered in Group"):
            group.register("add", add)
        with pytest.raises(DirectoryError, match="not registered in"):
            group.deregister("add")
        assert group.registered_sync("add", args=(1, 2)) == 3
        assert group.registered_async("add", kwargs={"a": 1, "b": 4}).wait() == 5
        assert group.registered_remote("add", args=(3, 4)).to_here() == 7
    group.barrier()
    if rt.rank == 1:
        group.unpair("holder")
        group.deregister("add")
    group.barrier()
    if rt.rank == 2:
        group.register("add", max)
    group.barrier()
    if rt.rank == 0:  # it remembers where the service was
        assert not group.is_paired("holder")
        assert group.registered_async("add", args=(1, 2)).wait() == 2
        assert group.registered_sync("add", args=(1, 2)) == 2
    group.barrier()


def groups(rt: Runtime) -> str | None:
    if rt.rank == 2:
        with pytest.raises(ValueError, match="is not in group"):
            rt.group("pair", rt.members[:2])
        rt.group().barrier()
        return None
    pair = rt.group("pair", rt.members[:2])
    assert pair.get_group_members() == sorted(rt.members[:2])
    assert (pair.size(), pair.is_member(), pair.is_member(rt.members[2])) == (2, True, False)
    assert rt.group("pair") is pair
    pair.barrier()
    pair.register(f"from {rt.rank}", add)
    assert not rt.group().is_registered(f"from {rt.rank}")
    received: RpcGroup = pair.rpc_sync(rt.members[1 - rt.rank], bound_group, args=(pair,))
    assert received.get_cur_name() == rt.name
    pair.barrier()
    pair.destroy()
    with pytest.raises(ClosedError, match="destroyed"):
        pair.rpc_sync(0, add, args=(1, 1))
    rt.group().barrier()
    again = rt.group("pair", rt.members[:2])
    assert not again.is_registered(f"from {rt.rank}")
    again.barrier()
    return again.get_group_name()


def bound_group(group: RpcGroup) -> RpcGroup:
    """Check that *group* belongs to the member where this runs, and send it back."""
    assert group.get_cur_name() == current.endpoint().name
    return group


def barriers(rt: Runtime, rounds: int) -> None:
    group = rt.group()
    if rt.rank == 0:
        with pytest.raises(CallTimeoutError):
            group.barrier(timeout=0.02)
        group.register("go", add)
    until(lambda: group.is_registered("go"), "the first member did not go on")
    for n in range(rounds):
        note(n)
        group.barrier()
        for name in rt.members:
            assert len(group.rpc_sync(name, noted)) == n + 1, "a barrier let a member pass"
        group.barrier()
    token = current.endpoint()
    passed: list[int] = []

    def meet() -> None:
        with current.acting_for(token):
            for _ in range(rounds):
                group.barrier()
                passed.append(1)

    threads = [threading.Thread(target=meet) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passed) == 3 * rounds
