"""Queues, and processes that use them."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from pparallel.patterns.queues import SimpleQueue
from pparallel.testing.patience import PATIENCE

KB, MB = 1 << 10, 1 << 20

CHILD = "import os, pickle, sys; queues = pickle.load(sys.stdin.buffer); q = queues[0]\n"


@pytest.fixture
def q() -> Iterator[SimpleQueue]:
    with SimpleQueue(memory=256 * MB) as made:
        yield made


class Child:
    """A process that runs lines of Python with the queues, the first of which is ``q``."""

    def __init__(self, code: str, *queues: SimpleQueue) -> None:
        command = [sys.executable, "-c", CHILD + code]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=False
        )
        self.input: IO[bytes] = self.process.stdin  # type: ignore[assignment]
        self.output: IO[bytes] = self.process.stdout  # type: ignore[assignment]
        pickle.dump(queues, self.input)
        self.input.flush()

    def line(self) -> str:
        return self.output.readline().decode().strip()

    def wait(self) -> int:
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.input.close()
        self.output.close()


@contextmanager
def child(code: str, *queues: SimpleQueue) -> Iterator[Child]:
    made = Child(code, *queues)
    try:
        yield made
    finally:
        made.kill()


@contextmanager
def running(*calls: Callable[[], object]) -> Iterator[None]:
    threads = [threading.Thread(target=each) for each in calls]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        for each in threads:
            each.join(PATIENCE)
        assert not any(each.is_alive() for each in threads)


def blocks(q: SimpleQueue) -> int:
    assert q._ends is not None
    return q._ends.arena.usage().blocks
