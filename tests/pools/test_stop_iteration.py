"""A task that raises StopIteration fails with a RuntimeError from it, as a generator does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import joblib
import pytest

import pparallel
import pparallel.joblib
from pparallel.compat import torch_multiprocessing
from pparallel.compat.machin import pool as machin
from pparallel.errors import RemoteError
from pparallel.testing.patience import PATIENCE
from pparallel_local import SerialPoolConfig, ThreadPoolConfig
from pparallel_process import P2PPoolConfig, ProcessPoolConfig

CONFIGS: dict[str, Callable[[], Any]] = {
    "serial": SerialPoolConfig,
    "thread": lambda: ThreadPoolConfig(size=2),
    "process": lambda: ProcessPoolConfig(size=2),
    "p2p": lambda: P2PPoolConfig(size=2),
}

#: calls a function with each item and returns an iterator of the results
STREAMS: dict[str, Callable[[Any, Callable[[Any], Any], list[Any]], Iterator[Any]]] = {
    "imap": lambda pool, func, items: pool.imap(func, items),
    "imap of chunks": lambda pool, func, items: pool.imap(func, items, chunksize=3),
    "imap_unordered": lambda pool, func, items: pool.imap_unordered(func, items),
}
CALLS: dict[str, Callable[[Any, Callable[[Any], Any], list[Any]], Any]] = {
    "apply": lambda pool, func, items: pool.apply(func, (items[3],)),
    "map": lambda pool, func, items: pool.map(func, items),
    "map_async": lambda pool, func, items: pool.map_async(func, items).get(PATIENCE),
    "starmap": lambda pool, func, items: pool.starmap(func, [(each,) for each in items]),
    "submit": lambda pool, func, items: pool.submit(func, items[3]).result(PATIENCE),
    "await": lambda pool, func, items: asyncio.run(waited_for(pool.submit(func, items[3]))),
    "executor": lambda pool, func, items: list(pool.as_executor().map(func, items)),
}


@pytest.fixture(params=CONFIGS)
def pool(request: pytest.FixtureRequest) -> Iterator[Any]:
    with pparallel.build(CONFIGS[request.param]()) as opened:
        yield opened


async def waited_for(handle: Any) -> Any:
    return await asyncio.wait_for(handle, PATIENCE)


def first(items: Any) -> Any:
    return next(iter(items))


def first_of_string(text: str) -> str:
    return next(iter(text))


def check(error: BaseException) -> None:
    """Check that it came from a StopIteration."""
    cause = error.__cause__
    assert isinstance(cause, StopIteration) or (
        isinstance(cause, RemoteError) and "\nStopIteration\n" in cause.traceback
    )


# Items of strings are plain data, which run many at a time; those of lists run one by one.
TASKS: list[tuple[Any, list[Any]]] = [
    (first_of_string, ["a", "b", "c", "", "d", "e"]),
    (first, [[1], [2], [3], [], [4], [5]]),
]


def test_a_call_raises_from_it(pool: Any) -> None:
    for (func, items), call in product(TASKS, CALLS.values()):
        with pytest.raises(RuntimeError, match="task raised StopIteration") as caught:
            call(pool, func, items)
        check(caught.value)


def test_a_stream_is_not_cut_short(pool: Any) -> None:
    for (func, items), stream in product(TASKS, STREAMS.values()):
        results = stream(pool, func, items)
        found: list[Any] = []
        errors: list[BaseException] = []
        for _ in items:
            try:
                found.append(next(results))
            except RuntimeError as error:
                errors.append(error)
        assert sorted(found) == [each[0] for each in items if each]
        assert len(errors) == 1
        check(errors[0])
        with pytest.raises(StopIteration):
            next(results)


def test_items_that_end_at_the_caller_are_no_task(pool: Any) -> None:
    class Ends:
        def __iter__(self) -> Ends:
            return self

        def __next__(self) -> str:
            raise StopIteration

    assert pool.map(first_of_string, Ends()) == []
    assert list(pool.imap(first_of_string, Ends())) == []


@pytest.mark.parametrize("kind", [torch_multiprocessing.Pool, machin.ThreadPool, machin.Pool])
def test_in_pools_of_other_libraries(kind: Any) -> None:
    pool = kind(1)
    try:
        for call in (pool.apply, pool.apply_async):
            with pytest.raises(RuntimeError, match="StopIteration"):
                getattr(call(first_of_string, ("",)), "get", int)()
        for call in (pool.map, pool.imap, pool.imap_unordered):
            with pytest.raises(RuntimeError, match="StopIteration"):
                list(call(first_of_string, ["a", ""]))
    finally:
        pool.terminate()
        pool.join()


def test_in_joblib(pool: Any) -> None:
    with (
        joblib.parallel_config("pparallel", pool=pool),
        pytest.raises(RuntimeError, match="StopIteration"),
    ):
        joblib.Parallel()(joblib.delayed(first_of_string)(each) for each in ("a", ""))
