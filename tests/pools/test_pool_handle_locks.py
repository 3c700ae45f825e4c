"""Handles among the futures that several threads wait for at once, in whatever order of locks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, as_completed, wait
from typing import Any

import pytest
from held_pools import HeldPool, double
from held_pools import pool as pool
from typing_extensions import override

from pparallel.interfaces.pool import Pool
from pparallel.testing.patience import PATIENCE

Wait = Callable[[list[Future[Any]]], object]


class Gate:
    """The lock of a future at which whoever takes it stops until the test lets all go on."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.release = self._lock.release
        self.reached, self.opened = threading.Event(), threading.Event()

    def acquire(self, *args: Any) -> bool:
        self.reached.set()
        self.opened.wait()
        return self._lock.acquire(*args)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class GatedFuture(Future[None]):
    """A plain future that has ended, and whose lock the test opens."""

    def __init__(self) -> None:
        super().__init__()
        self.set_result(None)
        gate: Any = Gate()
        self._condition = threading.Condition(gate)
        self.gate: Gate = gate


def completed(futures: list[Future[Any]]) -> object:
    return list(as_completed(futures))


WAITS: Iterable[Wait] = (wait, completed)


def in_order(*makes: Callable[[], Future[Any]]) -> list[Future[Any]]:
    """Return a future of each kind, in the order in which their locks are taken."""
    made: list[list[Future[Any]]] = [[] for _ in makes]
    while True:
        for each, make in zip(made, makes, strict=True):
            each.append(make())
        found: list[Future[Any]] = []
        for each in made:
            least = id(found[-1]) if found else 0
            above = [future for future in each if id(future) > least]
            if not above:
                break
            found.append(min(above, key=id))
        else:
            return found


def waiting(how: Wait, futures: list[Future[Any]]) -> threading.Thread:
    thread = threading.Thread(target=how, args=(futures,), daemon=True)
    thread.start()
    return thread


def ended(futures: Pool) -> Future[Any]:
    future = futures.submit(double, 1)
    assert future.result(PATIENCE) == 2
    return future


@pytest.mark.parametrize("how", WAITS)
def test_two_threads_wait_for_handles_of_two_pools(pool: Pool, how: Wait) -> None:
    other = StartedPool()
    first = in_order(lambda: ended(pool), GatedFuture, lambda: ended(other))
    second = in_order(lambda: ended(other), GatedFuture, lambda: ended(pool))
    gates = [first[1], second[1]]
    threads = [waiting(how, each) for each in (first, second)]
    for each in gates:
        assert isinstance(each, GatedFuture)
        assert each.gate.reached.wait(PATIENCE)
    for each in gates:
        assert isinstance(each, GatedFuture)
        each.gate.opened.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(each.is_alive() for each in threads)


@pytest.mark.parametrize("how", WAITS)
def test_handles_of_one_pool_and_a_plain_future(pool: Pool, how: Wait) -> None:
    """Whoever has the lock of one handle keeps nobody from another of the same pool."""
    mixed = in_order(lambda: ended(pool), GatedFuture)
    gated = mixed[1]
    assert isinstance(gated, GatedFuture)
    thread = waiting(how, mixed)
    try:
        assert gated.gate.reached.wait(PATIENCE)
        beside = waiting(how, [pool.submit(double, 1)])
        beside.join(PATIENCE)
        assert not beside.is_alive()
    finally:
        gated.gate.opened.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()


class StartedPool(HeldPool):
    """A pool that runs its tasks at once."""

    @override
    def carry(self, batch: Any, sink: Any) -> None:
        super().carry(batch, sink)
        while self.taken:
            task, its_sink = self.taken.pop()
            its_sink.done(0, [task.bound()(each) for each in task.items])
