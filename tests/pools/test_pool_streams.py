"""Streams that several threads read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import chain

import pytest
from still_pool import StillPool
from typing_extensions import override

from pparallel.interfaces.pool import Batch, Sink
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads


def double(number: int) -> int:
    return 2 * number


class AtOnce(StillPool):
    """A pool that runs what it is handed at once, and notes who waits for it."""

    def __init__(self) -> None:
        self.attended = 0

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        for index, item in enumerate(batch.items):
            sink.done(index, (batch.bound()(item),))

    @override
    def attend(
        self,
        ready: Callable[[], bool],
        wait: Callable[[float | None], object],
        timeout: float | None,
    ) -> None:
        self.attended += 1
        wait(timeout)


class Told:
    """A lock that tells a test when somebody looks whether it is taken."""

    def __init__(self, asked: Callable[[threading.Lock], object]) -> None:
        self._lock = threading.Lock()
        self._asked = asked

    def acquire(self, blocking: bool) -> bool:
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def locked(self) -> bool:
        found = self._lock.locked()
        if found:
            self._asked(self._lock)
        return found


@pytest.mark.parametrize("items", [0, 1])
def test_who_waits_for_another_to_ask_the_iterable_does_not_wait_for_the_pool(items: int) -> None:
    """The pool has nothing to do, and nothing that would wake whoever waits in it."""
    pool, asked, gate = AtOnce(), threading.Event(), threading.Event()

    def slow() -> Iterator[int]:
        asked.set()
        assert gate.wait(PATIENCE)
        yield from range(items)

    stream = pool.imap(double, slow())

    def read(number: int) -> list[int]:
        if number == 1:
            assert asked.wait(PATIENCE)
        return list(stream)

    def open_gate() -> list[int]:
        until(lambda: stream._waiting, "nobody waits")
        gate.set()
        return []

    found = in_threads(3, lambda number: open_gate() if number == 2 else read(number))
    assert list(chain(*found)) == [0] * items
    assert pool.attended == 0


def test_an_iterable_that_ends_just_before_another_thread_waits() -> None:
    pool, asked, gate = AtOnce(), threading.Event(), threading.Event()

    def slow() -> Iterator[int]:
        asked.set()
        assert gate.wait(PATIENCE)
        yield from ()

    def let_it_end(feeding: threading.Lock) -> None:
        if stream.lock.locked():  # whoever asks is about to wait
            gate.set()
            until(lambda: not feeding.locked(), "the other thread did not let go")

    stream = pool.imap(double, slow())
    stream._feeding = Told(let_it_end)  # type: ignore[assignment]

    def read(number: int) -> list[int]:
        if number:
            assert asked.wait(PATIENCE)
        return list(stream)

    assert in_threads(2, read) == [[], []]
