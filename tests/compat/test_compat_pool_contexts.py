"""``CtxPool`` and ``CtxThreadPool``: each worker has its context, on both roads."""

from __future__ import annotations

from typing import Any

import compat_pool_tasks as tasks
import pytest
from compat_pool_tasks import KINDS

from pparallel.compat.machin.pickle import dumps
from pparallel.compat.machin.pool import CtxPool, CtxPoolStorage, CtxThreadPool, proxy_ctx_caller
from pparallel.errors import WorkerLostError

POOLS: dict[str, Any] = {
    **{each: KINDS[each] for each in ("CtxPool", "CtxThreadPool")},
    "CtxPool, engine": tasks.overriding(CtxPool, "maintain_pool"),
    "CtxThreadPool, engine": tasks.overriding(CtxThreadPool, "maintain_pool"),
}
each_pool = pytest.mark.parametrize("kind", POOLS)
each_kind = pytest.mark.parametrize("kind", ["CtxPool", "CtxThreadPool"])


class TestContexts:
    """Each worker has its own."""

    @each_pool
    def test_the_context_comes_first(self, kind: str) -> None:
        with POOLS[kind](2, worker_contexts=["a", "b"]) as pool:
            found = pool.map(tasks.own_context, range(40), 1)
            assert [number for _, number, _ in found] == list(range(40))
            workers = {worker: context for context, _, worker in found}
            assert {(context, worker) for context, _, worker in found} == {
                (context, worker) for worker, context in workers.items()
            }
            assert {*workers.values()} <= {"a", "b"}
            for context, stored, *args in (
                pool.apply(tasks.with_context, (1,)),
                pool.apply_async(tasks.with_context, (1,)).get(),
                *pool.starmap(tasks.with_context, [(1,)]),
                *pool.starmap_async(tasks.with_context, [(1,)]).get(),
                *pool.map_async(tasks.with_context, [1]).get(),
                *pool.imap(tasks.with_context, [1]),
                *pool.imap_unordered(tasks.with_context, [1]),
                *pool.imap(tasks.with_context, [1], 2),
            ):
                assert (context in ("a", "b"), stored == context, args) == (True, True, [1])
            assert pool.apply(lambda context: context) in ("a", "b")
        assert CtxPoolStorage.storage is None

    def test_without_contexts_there_is_none(self) -> None:
        with CtxThreadPool(2) as pool:
            assert pool.map(tasks.with_context, range(2)) == [(None, None, 0), (None, None, 1)]

    def test_contexts_of_two_pools_do_not_mix(self) -> None:
        make = POOLS["CtxThreadPool"]
        with make(2, worker_contexts=[0, 1]) as one, make(2, worker_contexts=[2, 3]) as other:
            calls = [each.map_async(tasks.own_context, range(200), 5) for each in (one, other)]
            for call, contexts in zip(calls, ({0, 1}, {2, 3}), strict=True):
                found = call.get()
                assert [number for _, number, _ in found] == list(range(200))
                assert {context for context, *_ in found} <= contexts

    @each_kind
    def test_a_context_is_kept_and_may_be_replaced(self, kind: str) -> None:
        with POOLS[kind](1, worker_contexts=[{"count": 0}]) as pool:
            assert [pool.apply(tasks.count_in_context) for _ in range(3)] == [1, 2, 3]
            pool.apply(tasks.replace_context, ({"count": 10},))
            assert pool.apply(tasks.count_in_context) == 11

    @each_kind
    def test_an_initializer_finds_and_may_replace_the_context(self, kind: str) -> None:
        make = POOLS[kind]
        with make(1, initializer=tasks.store_next, initargs=(5,), worker_contexts=["a"]) as pool:
            found = {context for context, *_ in pool.map(tasks.own_context, range(20), 1)}
            assert found == {("a", 5)}

    @pytest.mark.parametrize("kind", ["CtxPool", "CtxPool, engine"])
    def test_a_new_worker_has_the_context_of_the_old(self, kind: str) -> None:
        import os

        with POOLS[kind](1, worker_contexts=["mine"]) as pool:
            with pytest.raises(WorkerLostError):
                pool.apply(_exit, (3,))
            context, stored, pid = pool.apply(tasks.with_context, (os.getpid(),))
            assert (context, stored) == ("mine", "mine")
            assert pid == os.getpid()


def test_contexts_are_as_many_as_workers() -> None:
    for make in POOLS.values():
        with pytest.raises(ValueError, match="not equal to the number of pool workers"):
            make(2, worker_contexts=[0, 1, 2, 3])


def _exit(_: object, code: int) -> None:
    import os

    os._exit(code)


def test_the_caller_of_serialised_functions() -> None:
    CtxPoolStorage.storage = "here"
    try:
        call = dumps(lambda *args, **kwds: (args, kwds), recurse=True)
        expected = (("here", 1), {"two": 2})
        assert proxy_ctx_caller(call, (1,), {"two": 2}) == expected
        assert proxy_ctx_caller((call, (1,), {"two": 2})) == expected
    finally:
        CtxPoolStorage.storage = None
