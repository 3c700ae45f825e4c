"""Time-outs of references and barriers."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from rpc_members import add, between, launch

from pparallel import Runtime
from pparallel.errors import CallTimeoutError
from pparallel.runtime.rpc import context
from pparallel.runtime.rpc.endpoint import Endpoint
from pparallel.runtime.rpc.group import RpcGroup
from pparallel.runtime.rpc.peer import Peer
from pparallel.testing.patience import PATIENCE


def fill(seconds: float) -> None:
    time.sleep(seconds)


def make(seconds: float) -> int:
    time.sleep(seconds)
    return 7


def test_a_fetch_keeps_its_timeout_over_all_its_steps() -> None:
    def program(rt: Runtime, group: RpcGroup) -> None:
        busy = group.rpc_async(1, fill, args=(0.8,))  # the only thread: the request waits for it
        ref = group.remote(1, make, args=(0.8,))
        with pytest.raises(CallTimeoutError):  # though neither step takes so long
            ref.to_here(1)
        assert ref.to_here(PATIENCE) == 7
        busy.result(PATIENCE)

    launch(between(program), handler_threads=1)


def test_a_fetch_that_is_not_confirmed_in_time_is_a_timeout_of_a_call() -> None:
    def program(rt: Runtime, group: RpcGroup) -> None:
        busy = group.rpc_async(1, fill, args=(0.3,))
        ref = group.remote(1, make, args=(0,))
        with pytest.raises(CallTimeoutError):
            ref.to_here(0.05)
        assert ref.to_here(PATIENCE) == 7
        busy.result(PATIENCE)

    launch(between(program), handler_threads=1)


@pytest.mark.parametrize("timeout", [None, math.inf])
def test_a_barrier_waits_where_it_has_no_limit_or_the_default(timeout: float | None) -> None:
    def program(rt: Runtime) -> None:
        if rt.rank == 1:
            time.sleep(0.05)
        rt.group().barrier(timeout)

    launch(program)


def test_a_barrier_that_times_out_names_who_is_missing() -> None:
    is_over = threading.Event()

    def program(rt: Runtime) -> None:
        if rt.rank == 0:
            with pytest.raises(CallTimeoutError, match=r"of group 'world' for m1, m2 \(barrier\)"):
                rt.group().barrier(0.05)
            is_over.set()
        assert is_over.wait(PATIENCE)
        rt.group().barrier(PATIENCE)

    launch(program, 3)


def test_a_barrier_that_times_out_leaves_that_of_another_thread() -> None:
    are_over = threading.Event()

    def program(rt: Runtime) -> None:
        group = rt.group()
        if rt.rank == 0:
            with ThreadPoolExecutor(1) as thread:
                other = thread.submit(group.barrier, PATIENCE)
                for _ in range(5):  # the other thread's comes before one of them
                    with pytest.raises(CallTimeoutError):
                        group.barrier(0.05)
                are_over.set()
                other.result()
        else:
            assert are_over.wait(PATIENCE)
            group.barrier(PATIENCE)

    launch(program)


def test_an_entry_that_times_out_names_who_is_missing_and_may_be_tried_again() -> None:
    is_over = threading.Event()

    def program(rt: Runtime) -> None:
        names = ["m0", "m1", "m2"]
        if rt.rank == 0:
            with pytest.raises(CallTimeoutError, match="entry of m1, m2 into group 'all'"):
                rt.group("all", names, timeout=0.05)
            is_over.set()
        assert is_over.wait(PATIENCE)
        assert rt.group("all", names, timeout=PATIENCE).size() == 3

    launch(program, 3)


def test_a_group_of_those_who_are_no_members_is_refused_at_once() -> None:
    def program(rt: Runtime) -> None:
        with pytest.raises(ValueError, match="'bob', of group 'x', is no member of this job"):
            rt.group("x", ["m0", "m1", "bob"])
        with pytest.raises(ValueError, match="group 'x' has a member twice"):
            rt.group("x", ["m0", "m0", "m1"])
        assert rt.group("x", ["m0", "m1"], timeout=PATIENCE).size() == 2

    launch(program)


@pytest.mark.parametrize("timeout", [math.nan, -2, 0])
def test_a_barrier_refuses_what_is_no_timeout(timeout: float) -> None:
    def program(rt: Runtime) -> None:
        with pytest.raises(ValueError, match="timeout"):
            rt.group().barrier(timeout)
        with suppress(CallTimeoutError):
            rt.group().barrier(PATIENCE)

    launch(program)


def test_the_search_for_a_registered_function_counts_in_the_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[float | None] = []
    find, call = RpcGroup._find, Endpoint.call

    def slow(group: RpcGroup, kind: str, key: str, timeout: float | None) -> Any:
        limits.append(timeout)
        time.sleep(0.01)
        return find(group, kind, key, timeout)

    def noted(endpoint: Endpoint, to: str, what: Any, timeout: float | None, *rest: Any) -> Any:
        limits.append(timeout)
        return call(endpoint, to, what, timeout, *rest)

    def program(rt: Runtime, group: RpcGroup) -> None:
        group.rpc_sync(1, offer)
        monkeypatch.setattr(RpcGroup, "_find", slow)
        monkeypatch.setattr(Endpoint, "call", noted)
        for _ in range(2):  # the second time its place is known
            assert group.registered_sync("add", (1, 2), timeout=PATIENCE) == 3
        assert group.registered_sync("add", (1, 2), timeout=None) == 3
        found, first, _, last = limits
        assert first <= found - 0.01 < PATIENCE  # type: ignore[operator]
        assert last is None

    def offer() -> None:

        RpcGroup(context.endpoint(), "world", ["m0", "m1"]).register("add", add)

    launch(between(program))


@pytest.mark.parametrize("how", ["registered_sync", "registered_async"])
def test_the_call_of_a_function_that_has_moved_keeps_its_time_out(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    limits: list[float | None] = []
    call, call_async = Peer.call, Peer.call_async

    def noted(method: Any) -> Any:
        def noting(peer: Peer, *args: Any) -> Any:
            limits.extend(each for each in args if type(each) is float)
            time.sleep(0.01)
            return method(peer, *args)

        return noting

    def program(rt: Runtime, group: RpcGroup) -> None:
        group.rpc_sync(1, offer)
        assert group.registered_sync("add", (1, 2)) == 3  # it is remembered where it is
        group.rpc_sync(1, withdraw)
        group.register("add", add)
        monkeypatch.setattr(Peer, "call", noted(call))
        monkeypatch.setattr(Peer, "call_async", noted(call_async))
        found = getattr(group, how)("add", (1, 2), timeout=PATIENCE)
        assert (found if how == "registered_sync" else found.wait()) == 3
        assert limits[0] <= PATIENCE  # type: ignore[operator]
        assert limits[-1] <= limits[0] - 0.01  # type: ignore[operator]

    def offer() -> None:
        RpcGroup(context.endpoint(), "world", ["m0", "m1"]).register("add", add)

    def withdraw() -> None:
        RpcGroup(context.endpoint(), "world", ["m0", "m1"]).deregister("add")

    launch(between(program))


BACKENDS = ["local", "ipc", "zmq"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_infinite_timeout_is_no_limit(backend: str) -> None:
    def program(rt: Runtime, group: RpcGroup) -> None:
        for call in (group.rpc_sync, lambda *args, **kw: group.rpc_async(*args, **kw).wait()):
            assert [call(1, add, (n, 1), timeout=math.inf) for n in range(5)] == [*range(1, 6)]
        assert group.remote(1, add, (1, 2), timeout=math.inf).to_here(math.inf) == 3

    launch(between(program), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_no_number_is_no_timeout(backend: str) -> None:
    def program(rt: Runtime, group: RpcGroup) -> None:
        for call in (group.rpc_sync, group.rpc_async, group.remote):
            with pytest.raises(ValueError, match="timeout"):
                call(1, add, (1, 2), timeout=math.nan)
        with pytest.raises(ValueError, match="timeout"):
            group.remote(1, add, (1, 2), timeout=PATIENCE).to_here(math.nan)

    launch(between(program), backend=backend)
