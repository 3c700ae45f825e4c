"""Streams of a pool's results."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from held_pools import HeldPool, double
from held_pools import pool as pool
from typing_extensions import override

from pparallel.errors import ClosedError, TaskTimeoutError
from pparallel.interfaces.pool import QUICK_LOOKAHEAD, Batch, Pool, PoolState, Sink
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads, switching_often


@pytest.mark.parametrize("ordered", [True, False])
def test_a_stream_that_several_threads_share(pool: Pool, ordered: bool) -> None:
    count = 5 * QUICK_LOOKAHEAD
    items = iter(range(count))
    stream = pool.imap(double, items) if ordered else pool.imap_unordered(double, items)
    with switching_often():
        parts = in_threads(4, lambda number: list(stream) if number % 2 else _by_next(stream))
    assert sorted(itertools.chain(*parts)) == list(range(0, 2 * count, 2))
    if ordered:
        assert all(part == sorted(part) for part in parts)
    assert list(stream) == []


def test_results_that_come_out_of_order() -> None:
    pool = HeldPool()
    stream = pool.imap(double, range(4))
    ((batch, sink),) = pool.taken
    assert list(batch.items) == [0, 1, 2, 3]
    sink.done(2, (4, 6))
    with pytest.raises(TaskTimeoutError):
        stream.next(0)
    sink.failed(1, LookupError("one"))
    sink.done(0, (0,))
    assert next(stream) == 0
    with pytest.raises(LookupError, match="one"):
        next(stream)
    assert list(stream) == [4, 6]


def test_what_was_reported_stays_when_a_pool_ends() -> None:
    pool = HeldPool()
    for call in (pool.imap, pool.imap_unordered):
        stream = call(double, range(9))
        _, sink = pool.taken.pop()
        sink.done(1, (2,))
        sink.done(0, (0,))
        sink.abort(ClosedError("the pool"))
        sink.done(2, (4,))
        sink.abort(LookupError("again"))
        pool.state = PoolState.JOINED
        assert sorted([next(stream), next(stream)]) == [0, 2]
        for _ in range(2):
            with pytest.raises(ClosedError):
                next(stream)
        with pytest.raises(ClosedError, match="joined"):
            next(stream)
        assert list(stream) == []
        pool.state = PoolState.OPEN


@pytest.mark.parametrize("items", [range(10**30), range(0, 10**7, 3), itertools.count()])
def test_endless_items(pool: Pool, items: Any) -> None:
    stream = pool.imap(double, items)
    first = items[:1000] if isinstance(items, range) else range(1000)
    assert [next(stream) for _ in range(1000)] == [2 * each for each in first]


def test_a_range_is_handed_over_as_one() -> None:
    pool = HeldPool()
    pool.imap(double, range(10, 100, 5))
    assert pool.taken[0][0].items == range(10, 30, 5)


def test_a_slow_iterable_does_not_hold_ready_results_back(pool: Pool) -> None:
    """Whoever waits for a result is not kept by another thread that waits for an item."""
    release, pulled = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        yield from range(30)
        pulled.set()
        release.wait(PATIENCE)
        yield 30

    stream = pool.imap(double, items())
    results: list[int] = []

    def take() -> None:
        results.extend(stream)

    takers = [threading.Thread(target=take) for _ in range(2)]
    for each in takers:
        each.start()
    try:
        assert pulled.wait(PATIENCE)
        until(lambda: len(results) == pool.lookahead(), "ready results were held back")
    finally:
        release.set()
        for each in takers:
            each.join(PATIENCE)
    assert sorted(results) == list(range(0, 62, 2))


def test_items_that_take_their_time() -> None:
    """A slow iterable is left after a millisecond, once something can be handed over."""

    def items() -> Iterator[int]:
        for each in range(100):
            end = time.monotonic() + 0.0004
            while time.monotonic() < end:
                pass
            yield each

    class Wide(HeldPool):
        @override
        def lookahead(self) -> int:
            return 100

    pool = Wide()
    pool.imap(double, items())
    assert 1 <= len(pool.taken[0][0].items) < 50


def test_no_two_batches_are_more_than_the_window(pool: Pool) -> None:
    """However results come, no more than the window is out."""
    out, most = [0], [0]

    class Counting(HeldPool):
        @override
        def lookahead(self) -> int:
            return 10

        @override
        def carry(self, batch: Batch, sink: Sink) -> None:
            super().carry(batch, sink)
            out[0] += len(batch.items)
            most[0] = max(most[0], out[0])

    pool = Counting()
    stream = pool.imap_unordered(double, range(1000))
    for _ in range(1000):
        while pool.taken:
            batch, sink = pool.taken.pop()
            sink.done(0, [2 * each for each in batch.items])
        next(stream)
        out[0] -= 1
    assert most[0] <= QUICK_LOOKAHEAD
    assert list(stream) == []


def _double_all(pool: HeldPool) -> None:
    while pool.taken:
        batch, sink = pool.taken.pop(0)
        sink.done(0, [2 * each for each in batch.items])


def _by_next(stream: Any) -> list[int]:
    results: list[int] = []
    while True:
        try:
            results.append(stream.next(PATIENCE))
        except StopIteration:
            return results
