"""Called functions that answer later: by a future, or as coroutines."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from rpc_members import first_of_two

from pparallel.errors import CallTimeoutError
from pparallel.runtime.rpc import RpcGroup, context
from pparallel.runtime.rpc.loop import Loop
from pparallel.testing.patience import PATIENCE, until

WAITING: list[tuple[int, Future[int]]] = []
CANCELLED: list[str] = []
THREADS: set[int] = set()


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for each in (WAITING, CANCELLED, THREADS):
        each.clear()


def batched(number: int) -> Future[int]:
    """Answer all callers together, once all are there."""
    future: Future[int] = Future()
    WAITING.append((number, future))
    if len(WAITING) == 200:
        total = sum(each for each, _ in WAITING)
        for _, waiting in WAITING:
            waiting.set_result(total)
    return future


async def slowly(number: int) -> int:
    THREADS.add(threading.get_ident())
    await asyncio.sleep(0.01)
    if number < 0:
        raise LookupError("a coroutine that fails")
    return number + 1


async def for_ever(name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        CANCELLED.append(name)


async def through(to: str, number: int) -> int:
    endpoint = context.endpoint()
    group = RpcGroup(endpoint, "world", endpoint.member.names)
    found: int = await group.rpc_async(to, slowly, (number,))
    return found + 1


class Server:
    """A value whose methods answer later."""

    def __init__(self) -> None:
        self.future: Future[str] = Future()

    def wait(self) -> Future[str]:
        return self.future

    def give(self, value: str) -> None:
        self.future.set_result(value)

    async def double(self, number: int) -> int:
        return 2 * await slowly(number)


each_backend = pytest.mark.parametrize("backend", ["local", "ipc"])


@each_backend
def test_callers_that_wait_hold_no_handler_thread(backend: str) -> None:
    with first_of_two(backend, handler_threads=1) as group:
        futures = [group.rpc_async(1, batched, (n,)) for n in range(199)]
        assert group.rpc_sync(1, abs, (-1,)) == 1
        assert group.rpc_sync(1, batched, (199,)) == sum(range(200))
        assert {each.wait(PATIENCE) for each in futures} == {sum(range(200))}


@each_backend
def test_coroutines_run_on_one_loop(backend: str) -> None:
    with first_of_two(backend, handler_threads=1) as group:
        futures = [group.rpc_async(1, slowly, (n,)) for n in range(50)]
        assert group.rpc_sync(1, slowly, (7,)) == 8
        assert [each.wait(PATIENCE) for each in futures] == [*range(1, 51)]
        assert len(THREADS) == 1
        for call in (group.rpc_sync, lambda *args: group.rpc_async(*args).wait()):
            with pytest.raises(LookupError, match="a coroutine that fails"):
                call(1, slowly, (-1,))
        assert group.rpc_sync(1, through, ("m0", 1)) == 3
        assert group.remote(1, slowly, (1,)).to_here(PATIENCE) == 2


def test_methods_of_a_reference_answer_later() -> None:
    with first_of_two(handler_threads=1) as group:
        server = group.remote(1, Server)
        waiting = server.rpc_async().wait()
        assert server.rpc_sync().double(3) == 8
        server.rpc_sync().give("here")
        assert waiting.wait(PATIENCE) == "here"
        assert server.rpc_sync().wait() == "here"


def test_a_coroutine_is_cancelled_when_its_time_is_over_or_its_member_closes() -> None:
    with first_of_two() as group:
        with pytest.raises(CallTimeoutError):
            group.rpc_sync(1, for_ever, ("late",), timeout=0.05)
        until(lambda: CANCELLED == ["late"], "it runs on")
        group.rpc_async(1, for_ever, ("closed",), timeout=None)
        assert group.rpc_sync(1, slowly, (1,)) == 2
    assert CANCELLED == ["late", "closed"]


def test_a_coroutine_that_comes_as_its_member_closes_has_begun_and_is_cancelled(
    recwarn: pytest.WarningsRecorder,
) -> None:
    for number in range(20):
        loop = Loop("m0")
        found = [loop.run(for_ever(f"{number}"), 0.0) for _ in range(3)]
        loop.close()
        assert all(each.cancelled() for each in found)
        del found
    gc.collect()
    assert len(CANCELLED) == 60
    assert not [each for each in recwarn if "never awaited" in str(each.message)]
