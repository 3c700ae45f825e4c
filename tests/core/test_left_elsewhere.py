"""Runtimes and pools that are entered in one thread or task, and left in another or later."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pparallel
from pparallel.errors import ClosedError
from pparallel.interfaces.pool import Pool
from pparallel.runtime import member
from pparallel_local import ThreadPoolConfig
from pparallel_process import ProcessPoolConfig

Made = pparallel.Runtime | Pool


def runtime() -> pparallel.Runtime:
    return pparallel.build({"pool": {"backend": "thread", "size": 1}})


def thread_pool() -> Pool:
    return pparallel.build(ThreadPoolConfig(size=1))


def process_pool() -> Pool:
    return pparallel.build(ProcessPoolConfig(size=1))


makes = pytest.mark.parametrize("make", [runtime, thread_pool, process_pool])


def use(made: Made) -> None:
    pool = made.pool if isinstance(made, pparallel.Runtime) else made
    assert pool.map(abs, [-1, -2]) == [1, 2]


def check_closed(made: Made) -> None:
    with pytest.raises(ClosedError):
        use(made)


def elsewhere(act: Callable[[], Any]) -> Any:
    """Return what *act* returns in a thread of its own."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(act).result()


@makes
def test_two_threads(make: Callable[[], Made]) -> None:
    """As a server's hooks do, or fixtures of pytest."""
    made = make()
    elsewhere(made.__enter__)
    use(made)
    elsewhere(lambda: made.__exit__(None, None, None))
    check_closed(made)


def test_open_and_close_of_a_runtime_in_two_threads() -> None:
    made = runtime()
    made.open()
    elsewhere(made.close)
    with pytest.raises(ClosedError):
        use(made)


@makes
def test_an_exit_stack_that_another_task_closes(make: Callable[[], Made]) -> None:
    async def main() -> Made:
        stack, made = contextlib.ExitStack(), make()

        async def start() -> None:
            stack.enter_context(made)

        async def stop() -> None:
            stack.close()

        await asyncio.create_task(start())
        use(made)
        await asyncio.create_task(stop())
        return made

    check_closed(asyncio.run(main()))


@makes
def test_an_async_generator_left_by_break(make: Callable[[], Made]) -> None:
    """The event loop closes it, in a task of its own."""
    errors: list[dict[str, Any]] = []
    made = make()

    async def results() -> AsyncIterator[int]:
        with made:
            use(made)
            yield 1
            yield 2

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, each: errors.append(each))
        async for _ in results():
            break
        await asyncio.get_running_loop().shutdown_asyncgens()

    asyncio.run(main())
    assert not errors
    check_closed(made)


@makes
def test_a_generator_that_other_threads_advance(make: Callable[[], Made]) -> None:
    """As FastAPI does with a dependency that yields: each step is in a copy of the context."""

    def dependency() -> Iterator[Made]:
        with make() as made:
            yield made

    async def main() -> Made:
        steps = dependency()
        made = await asyncio.to_thread(next, steps)
        await asyncio.to_thread(use, made)
        assert await asyncio.to_thread(next, steps, None) is None
        return made

    check_closed(asyncio.run(main()))


@makes
def test_left_in_the_order_of_entering(make: Callable[[], Made]) -> None:
    first, second = make(), make()

    def enter_and_leave() -> object:
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        use(second)
        second.__exit__(None, None, None)
        return member.current()

    assert elsewhere(enter_and_leave) is None
    check_closed(second)


def test_a_thread_that_entered_one_serves_the_next() -> None:
    """What arrives in it belongs to the runtime that is open, not to the one that was closed."""
    first, second = pparallel.build(), pparallel.build()
    first.open()
    elsewhere(first.close)
    elsewhere(second.open)
    group = pickle.loads(pickle.dumps(second.group()))
    assert group.rpc_sync("member-0", abs, args=(-1,)) == 1
    elsewhere(second.close)
    with pytest.raises(ClosedError):
        pickle.loads(pickle.dumps(second.group()))


@makes
def test_a_second_with_is_refused(make: Callable[[], Made]) -> None:
    made = make()
    with made:
        with pytest.raises(ClosedError), made:
            pass
        use(made)
    with pytest.raises(ClosedError, match="build another"), made:
        pass
