"""Calls that are cancelled: before they leave, before they run, and while they run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING

import pytest
from rpc_fakes import FakePeer, call, result

import pparallel
from pparallel.runtime.future import LeanFuture
from pparallel.runtime.rpc import Reply, RpcGroup, context
from pparallel.runtime.rpc.codec import ACK, CANCEL, IDEMPOTENT
from pparallel.runtime.rpc.peer import HELD, SOON
from pparallel.testing.patience import PATIENCE, until

if TYPE_CHECKING:
    from pparallel.builder import Runtime

GATE = threading.Event()
STARTED: list[str] = []
ENDED: list[str] = []
OWN: list[Future[str]] = []


def two(work: Callable[[RpcGroup], None], transport: str) -> None:
    """Do *work* in the first of two members, each of which runs one function at a time."""
    GATE.clear()
    for each in (STARTED, ENDED, OWN):
        each.clear()

    def program(rt: Runtime) -> None:
        group = rt.group()
        group.serve("what was sent before", lambda request: Reply())
        group.barrier(PATIENCE)
        if rt.rank == 0:
            try:
                work(group)
            finally:
                GATE.set()
        group.barrier(PATIENCE)

    chosen = {"backend": transport, "handler_threads": 1}
    job = {"members": 2, "reducer": {"backend": "local"}, "transport": chosen}
    pparallel.launch(job, program)


def wait_at_gate(name: str) -> None:
    STARTED.append(name)
    GATE.wait(PATIENCE)
    ENDED.append(name)


async def for_ever(name: str) -> None:
    STARTED.append(name)
    try:
        await asyncio.Event().wait()
    finally:
        ENDED.append(name)


def by_another(to: int, name: str) -> Future[None]:
    endpoint = context.endpoint()
    return RpcGroup(endpoint, "world", endpoint.member.names).rpc_async(to, for_ever, (name,))


def by_own_future() -> Future[str]:
    OWN.append(Future())
    return OWN[-1]


each_transport = pytest.mark.parametrize("transport", ["local", "ipc"])


@each_transport
def test_a_coroutine_is_cancelled_with_its_call(transport: str) -> None:
    def work(group: RpcGroup) -> None:
        future = group.rpc_async(1, for_ever, ("coroutine",), timeout=None)
        until(lambda: STARTED == ["coroutine"], "it does not start")
        assert future.cancel()
        assert future.cancelled()
        assert future.ready()
        assert not future.successful()
        for ask in (future.result, future.exception, future.wait, future.get, future.value):
            with pytest.raises(CancelledError):
                ask()
        until(lambda: ENDED == ["coroutine"], "it runs on")
        assert future.cancel()
        done = group.rpc_async(1, abs, (-1,))
        assert done.wait(PATIENCE) == 1
        assert not done.cancel()
        assert done.result() == 1

    two(work, transport)


@each_transport
def test_a_call_that_has_not_started_is_not_run(transport: str) -> None:
    def work(group: RpcGroup) -> None:
        running = group.rpc_async(1, wait_at_gate, ("running",))
        until(lambda: STARTED == ["running"], "it does not start")
        futures = [group.rpc_async(1, wait_at_gate, (f"waits {n}",)) for n in range(100)]
        last = group.rpc_async(1, wait_at_gate, ("last",))
        assert all(each.cancel() for each in futures)
        group.ask_async("member-1", "what was sent before").result(PATIENCE)
        GATE.set()
        last.wait(PATIENCE)
        running.wait(PATIENCE)
        assert STARTED == ENDED == ["running", "last"]

    two(work, transport)


@each_transport
def test_a_plain_function_that_runs_goes_on(transport: str) -> None:
    def work(group: RpcGroup) -> None:
        future = group.rpc_async(1, wait_at_gate, ("running",))
        until(lambda: STARTED == ["running"], "it does not start")
        assert future.cancel()
        GATE.set()
        assert group.rpc_sync(1, abs, (-1,)) == 1
        assert ENDED == ["running"]

    two(work, transport)


@each_transport
def test_a_call_whose_result_is_waited_for_is_cancelled_with_the_call(transport: str) -> None:
    def work(group: RpcGroup) -> None:
        future = group.rpc_async(1, by_another, (0, "further on"), timeout=None)
        until(lambda: STARTED == ["further on"], "it does not start")
        assert future.cancel()
        until(lambda: ENDED == ["further on"], "it runs on")

    two(work, transport)


@each_transport
def test_a_future_that_the_function_ends_itself_is_left_alone(transport: str) -> None:
    def work(group: RpcGroup) -> None:
        future = group.rpc_async(1, by_own_future, timeout=None)
        until(lambda: len(OWN) == 1, "it does not start")
        assert future.cancel()
        assert group.rpc_sync(1, abs, (-1,)) == 1
        OWN[0].set_result("others may wait for it")

    two(work, transport)


@each_transport
def test_what_awaits_a_call_cancels_it(transport: str) -> None:
    async def give_up(future: Future[None]) -> None:
        task = asyncio.ensure_future(asyncio.wrap_future(future))
        while STARTED != ["awaited"]:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    def work(group: RpcGroup) -> None:
        future = group.rpc_async(1, for_ever, ("awaited",), timeout=None)
        asyncio.run(give_up(future))
        assert future.cancelled()
        until(lambda: ENDED == ["awaited"], "it runs on")

    two(work, transport)


def test_those_who_wait_for_several_calls_see_the_cancelled_one() -> None:
    def work(group: RpcGroup) -> None:
        future = group.rpc_async(1, for_ever, ("one",), timeout=None)
        called = threading.Event()
        later = future.then(lambda done: called.set())
        assert future.cancel()
        assert concurrent.futures.wait([future], PATIENCE).done == {future}
        assert [*concurrent.futures.as_completed([future], PATIENCE)] == [future]
        later.wait(PATIENCE)
        assert called.is_set()
        with pytest.raises(CancelledError):
            pparallel.wait_all([future])

    two(work, "local")


def test_a_registered_function_is_cancelled() -> None:
    def program(rt: Runtime) -> None:
        group = rt.group()
        if rt.rank == 1:
            group.register("for ever", for_ever)
        group.barrier(PATIENCE)
        if rt.rank == 0:
            future = group.registered_async("for ever", ("registered",), timeout=None)
            until(lambda: STARTED == ["registered"], "it does not start")
            assert future.cancel()
            until(lambda: ENDED == ["registered"], "it runs on")
        group.barrier(PATIENCE)

    STARTED.clear()
    ENDED.clear()
    pparallel.launch({"members": 2, "reducer": {"backend": "local"}}, program)


# -- a peer alone -----------------------------------------------------------------------------


def test_a_cancelled_call_keeps_its_room_until_it_is_answered_and_the_next_the_order() -> None:
    it = FakePeer()
    future = it.call()
    it.messages()
    it.peer.cancel(1)
    assert isinstance(future.error, CancelledError)
    assert it.messages() == [[(CANCEL, 1, 0)]]
    assert it.peer._used > 0, "it may wait there yet"
    assert it.peer.ask("key", None, (), None) is None, "it overtakes what may run yet"
    it.arrive(result(1))
    assert it.peer._used == 0
    it.peer.cancel(1)
    it.peer.cancel(2)
    assert it.messages() == []


def test_a_call_that_has_not_left_leaves_with_the_word_that_it_is_cancelled() -> None:
    it, called = FakePeer(), FakePeer()
    it.call()
    it.call()
    assert it.ids() == [[1]]
    it.peer.cancel(2)
    [items] = it.messages()
    assert [item[1] for item in items] == [2, 2]
    [(item, _)] = called.arrive(*items)
    assert item[1] in called.peer.cancelled, "it is run"
    it.timers.advance(HELD)
    assert it.messages() == []


def test_an_idempotent_call_that_is_cancelled_is_not_sent_again_nor_kept() -> None:
    it = FakePeer(retry_after=1.0)
    it.call(IDEMPOTENT, timeout=None)
    it.peer.cancel(1)
    it.messages()
    it.timers.advance(SOON)
    assert it.messages() == [[(ACK, [1], 0)]]
    it.timers.advance(100)
    assert it.messages() == []


def test_a_call_that_answers_later_is_cancelled_whenever_the_word_comes() -> None:
    it = FakePeer()
    early, late, lost, done = (LeanFuture[int]() for _ in range(4))
    it.arrive(call(1), call(2), call(3), call(4), (CANCEL, 1, 0))
    for number, each in enumerate((early, late, lost, done), 1):
        it.peer.answers_later(number, each, each.cancel)
    assert [each.cancelled() for each in (early, late, lost, done)] == [True, False, False, False]
    it.arrive((CANCEL, 2, 0))
    assert late.cancelled()
    done.set_result(4)
    it.peer.post((result(1), ()))
    assert not it.peer.cancelled
    it.peer.end(lambda: RuntimeError("the member is lost"))
    assert lost.cancelled()
    assert done.result() == 4
