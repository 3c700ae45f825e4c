"""Calls that are cancelled: before they leave, before they run, and while they run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

import pytest
from rpc_fakes import FakePeer, call, result
from rpc_members import Gates, first_of_two

import pparallel
from pparallel.runtime.future import LeanFuture
from pparallel.runtime.rpc import Reply, RpcGroup, context
from pparallel.runtime.rpc.codec import ACK, CANCEL, IDEMPOTENT
from pparallel.runtime.rpc.peer import SOON
from pparallel.testing.patience import PATIENCE, until

STARTED: list[str] = []
ENDED: list[str] = []
OWN: list[Future[str]] = []


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for each in (STARTED, ENDED, OWN):
        each.clear()


def wait_at_gate(name: str) -> None:
    STARTED.append(name)
    Gates.opened.wait(PATIENCE)
    ENDED.append(name)


async def for_ever(name: str) -> None:
    STARTED.append(name)
    try:
        await asyncio.Event().wait()
    finally:
        ENDED.append(name)


def group_here() -> RpcGroup:
    endpoint = context.endpoint()
    return RpcGroup(endpoint, "world", endpoint.member.names)


def by_another(to: int, name: str) -> Future[None]:
    return group_here().rpc_async(to, for_ever, (name,))


def by_own_future() -> Future[str]:
    OWN.append(Future())
    return OWN[-1]


def register_for_ever() -> None:
    group_here().register("for ever", for_ever)


def serve_a_word() -> None:
    group_here().serve("what was sent before", lambda request: Reply())


each_backend = pytest.mark.parametrize("backend", ["local", "ipc"])


@each_backend
@pytest.mark.parametrize("is_registered", [False, True])
def test_a_coroutine_is_cancelled_with_its_call(backend: str, is_registered: bool) -> None:
    with first_of_two(backend, handler_threads=1) as group:
        if is_registered:
            group.rpc_sync(1, register_for_ever)
            future = group.registered_async("for ever", ("coroutine",), timeout=None)
        else:
            future = group.rpc_async(1, for_ever, ("coroutine",), timeout=None)
        called = threading.Event()
        later = future.then(lambda done: called.set())
        until(lambda: STARTED == ["coroutine"], "it does not start")
        assert future.cancel()
        assert future.cancelled()
        assert future.ready()
        assert not future.successful()
        for ask in (future.result, future.exception, future.wait, future.get, future.value):
            with pytest.raises(CancelledError):
                ask()
        assert concurrent.futures.wait([future], PATIENCE).done == {future}
        with pytest.raises(CancelledError):
            pparallel.wait_all([future])
        later.wait(PATIENCE)
        assert called.is_set()
        until(lambda: ENDED == ["coroutine"], "it runs on")
        assert future.cancel()
        done = group.rpc_async(1, abs, (-1,))
        assert done.wait(PATIENCE) == 1
        assert not done.cancel()
        assert done.result() == 1


@each_backend
def test_a_plain_function_that_runs_goes_on_and_one_that_has_not_started_is_not_run(
    backend: str,
) -> None:
    with first_of_two(backend, handler_threads=1) as group:
        group.rpc_sync(1, serve_a_word)
        running = group.rpc_async(1, wait_at_gate, ("running",))
        until(lambda: STARTED == ["running"], "it does not start")
        futures = [group.rpc_async(1, wait_at_gate, (f"waits {n}",)) for n in range(100)]
        last = group.rpc_async(1, wait_at_gate, ("last",))
        assert all(each.cancel() for each in (*reversed(futures), running))  # some are held yet
        group.ask_async("m1", "what was sent before").result(PATIENCE)
        Gates.opened.set()
        last.wait(PATIENCE)
        assert STARTED == ENDED == ["running", "last"]


@each_backend
def test_a_call_whose_result_is_waited_for_is_cancelled_with_the_call(backend: str) -> None:
    with first_of_two(backend, handler_threads=1) as group:
        future = group.rpc_async(1, by_another, (0, "further on"), timeout=None)
        until(lambda: STARTED == ["further on"], "it does not start")
        assert future.cancel()
        until(lambda: ENDED == ["further on"], "it runs on")


@each_backend
def test_a_future_that_the_function_ends_itself_is_left_alone(backend: str) -> None:
    with first_of_two(backend, handler_threads=1) as group:
        future = group.rpc_async(1, by_own_future, timeout=None)
        until(lambda: len(OWN) == 1, "it does not start")
        assert future.cancel()
        assert group.rpc_sync(1, abs, (-1,)) == 1
        OWN[0].set_result("others may wait for it")


@each_backend
def test_what_awaits_a_call_cancels_it(backend: str) -> None:
    async def give_up(future: Future[None]) -> None:
        task = asyncio.ensure_future(asyncio.wrap_future(future))
        while STARTED != ["awaited"]:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with first_of_two(backend, handler_threads=1) as group:
        future = group.rpc_async(1, for_ever, ("awaited",), timeout=None)
        asyncio.run(give_up(future))
        assert future.cancelled()
        until(lambda: ENDED == ["awaited"], "it runs on")


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
