"""Clients that do their part at the same moment, each in a process of its own.

A turn has three steps, and nobody begins one before all have done the one before: all prepare,
all run, all check. The clock sees the second alone.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from benchmarks.away import started
from benchmarks.harness import Samples, Turn
from benchmarks.harness.pinning import pin
from benchmarks.harness.processes import Stopwatch
from pparallel.runtime.processes import Process


class Part(Protocol):
    """What one client does in a turn."""

    tasks: int  #: of how many tasks a run consists

    def prepare(self, number: int) -> None:
        """Make what is needed for the turn of this number, which comes once only."""

    def run(self) -> Samples:
        """Do it; return the seconds of what it consists of, by name."""

    def check(self) -> bool:
        """Say whether all is as it should be."""


Opened = Callable[[], AbstractContextManager[Any]]
"""Opens what a client uses, in its process: a function of a module, with its arguments."""

Recipe = Callable[[Any], Part]
"""Makes a client's part of what was opened; it is pickled, and made once in each client."""


class Order(NamedTuple):
    """What all clients are told at once: a step, and for the first one all that belongs to it."""

    step: str
    recipe: bytes = b""
    number: int = 0
    cores: frozenset[int] = frozenset()


class Ran(NamedTuple):
    """What a client says of its run."""

    began: float
    ended: float
    tasks: int
    samples: Samples


class Crew:
    """Clients that take turns as one."""

    def __init__(
        self, connections: Sequence[Connection[Any, Any]], still: Sequence[Process]
    ) -> None:
        self._connections, self._still = connections, still
        self._answers()
        self._signal(signal.SIGSTOP)

    def turn(self, recipe: Recipe) -> Turn:
        """Return a turn in which every client does its part."""
        pickled = pickle.dumps(recipe)

        def turn(number: int) -> Samples:
            self._signal(signal.SIGCONT)
            cores = frozenset(os.sched_getaffinity(0))
            self._all(Order("prepare", pickled, number, cores))
            used = Stopwatch()
            ran: list[Ran] = self._all(Order("run"))
            cpu = used.read()
            if not all(self._all(Order("check"))):
                raise ValueError(f"turn {number} has a wrong result")
            self._signal(signal.SIGSTOP)
            return {**_together(ran), "cpu": cpu / sum(each.tasks for each in ran)}

        return turn

    def end(self) -> None:
        """Have all close what they opened, without waiting for it."""
        self._signal(signal.SIGCONT)
        for each in self._connections:
            each.send(None)

    def _all(self, order: Order) -> list[Any]:
        for each in self._connections:
            each.send(order)
        return self._answers()

    def _answers(self) -> list[Any]:
        answers = [each.recv() for each in self._connections]
        if errors := [error for _, error in answers if error]:
            raise RuntimeError(errors[0])
        return [answer for answer, _ in answers]

    def _signal(self, number: signal.Signals) -> None:
        for each in self._still:
            each.signal(number)


@contextmanager
def crew(
    opened: Sequence[Opened],
    servers: Sequence[Process] = (),
    *,
    polling: bool = False,
    preload: Sequence[str] = (),
) -> Iterator[Crew]:
    """Start a client for each of *opened*.

    Args:
        opened: what each client opens; all do so at the same time.
        servers: the processes that they need beside their own.
        polling: whether all of these use the processor with nothing to do, and therefore have to
            stand still while it is not their turn.
        preload: further modules that the clients find imported.
    """
    with ExitStack() as stack:
        clients = [_client(stack, each, preload) for each in opened]
        processes = [process for process, _ in clients]
        still = [*servers, *processes] if polling else []
        found = Crew([connection for _, connection in clients], still)
        yield found
        found.end()


def _together(ran: Sequence[Ran]) -> Samples:
    """Return the time from the first one's beginning to the last one's end, and the medians."""
    wall = max(each.ended for each in ran) - min(each.began for each in ran)
    names = ran[0].samples
    medians = {name: median(each.samples[name] for each in ran) for name in names}
    return {"wall": wall / ran[0].tasks, **medians}


def _client(
    stack: ExitStack, opened: Opened, preload: Sequence[str]
) -> tuple[Process, Connection[Any, Any]]:
    """Start one client, which ends, and is waited for, with the stack."""
    here, there = socket.socketpair()
    with here, there:
        connection = stack.enter_context(Connection(os.dup(here.fileno())))
        payload, fds = pickle.dumps(opened), [there.fileno()]
        process = stack.enter_context(
            started("benchmarks.crews:_live", payload, fds, preload=preload)
        )
    return process, connection


def _live(payload: bytes, fds: Sequence[int]) -> None:
    """Do what a client's process is for."""
    opened: Opened = pickle.loads(payload)
    with Connection(fds[0]) as connection, opened() as used:
        gc.collect()
        gc.freeze()  # as the harness does where the others are
        connection.send((None, ""))
        steps = _Steps(used)
        while (order := connection.recv()) is not None:
            connection.send(steps.outcome(order))


class _Steps:
    """One client's side of the turns."""

    def __init__(self, used: object) -> None:
        self._used = used
        self._parts: dict[bytes, Part] = {}
        self._part: Part

    def outcome(self, order: Order) -> tuple[object, str]:
        """Do one step; return what came of it, or else what went wrong."""
        try:
            return {"prepare": self._prepare, "run": self._run, "check": self._check}[order.step](
                order
            ), ""
        except Exception:  # noqa: BLE001 - the harness is told
            return None, traceback.format_exc()

    def _prepare(self, order: Order) -> None:
        pin(os.getpid(), set(order.cores))
        if order.recipe not in self._parts:
            self._parts[order.recipe] = pickle.loads(order.recipe)(self._used)
        self._part = self._parts[order.recipe]
        self._part.prepare(order.number)
        gc.collect()

    def _run(self, _: Order) -> Ran:
        began = perf_counter()
        samples = self._part.run()
        return Ran(began, perf_counter(), self._part.tasks, samples)

    def _check(self, _: Order) -> bool:
        return self._part.check()
