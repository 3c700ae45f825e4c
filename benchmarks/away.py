"""A contender whose caller lives in a process of its own, and stands still until it is its turn.

The threads of torch's RPC never sleep: each end polls on one core all the time that it is open.
In a process that others are measured in, that would be in everybody's figures.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.calls import Caller, Recipe
from benchmarks.harness import Samples, Turn
from benchmarks.harness.pinning import pin
from benchmarks.harness.processes import descendants
from pparallel.runtime import processes
from pparallel.runtime.processes import Process, StartMethod

_PRELOAD = ("benchmarks.members", "benchmarks.rpc_peers", "pparallel.builder", "torch", "zmq")
_PATIENCE = 60.0  #: seconds that a process may take to end

Opened = Callable[[], AbstractContextManager[Caller]]


@contextmanager
def started(
    target: str,
    payload: bytes,
    fds: Sequence[int] = (),
    method: StartMethod = "forkserver",
    preload: Sequence[str] = (),
) -> Iterator[Process]:
    """Start a process, forked with all loaded, that ends by itself when it is told to."""
    modules = (*_PRELOAD, *preload)
    process = processes.start(target, payload, fds, method=method, preload=modules)
    try:
        yield process
        end = process.ended(_PATIENCE)
        if end is None or end.code:
            raise RuntimeError(f"{target} did not end well: {end}")
    finally:
        process.signal(signal.SIGKILL)
        process.ended(_PATIENCE)
        process.close()


class Away:
    """A caller in a process of its own, which runs in its turns alone."""

    def __init__(self, process: Process, connection: Connection[Any, Any]) -> None:
        self._process, self._connection = process, connection
        self._answer()
        self.signal(signal.SIGSTOP)

    def turn(self, recipe: Recipe) -> Turn:
        """Return a turn that is made, and run, over there."""

        def turn(number: int) -> Samples:
            self.signal(signal.SIGCONT)
            self._connection.send((recipe, number, os.sched_getaffinity(0)))
            samples: Samples = self._answer()
            self.signal(signal.SIGSTOP)
            return samples

        return turn

    def end(self) -> None:
        """Have it close what it opened."""
        self.signal(signal.SIGCONT)
        self._connection.send(None)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to that process and to those that it started."""
        for pid in descendants(self._process.pid):
            os.kill(pid, number)
        self._process.signal(number)

    def _answer(self) -> Any:
        samples, error = self._connection.recv()
        if error:
            raise RuntimeError(error)
        return samples


@contextmanager
def away(opened: Opened) -> Iterator[Away]:
    """Have a caller opened in a process of its own; *opened* is a function of a module."""
    here, there = socket.socketpair()
    with (
        here,
        there,
        Connection(os.dup(here.fileno())) as connection,
        started("benchmarks.away:_live", pickle.dumps(opened), [there.fileno()]) as process,
    ):
        there.close()  # so that its end is seen
        contender = Away(process, connection)
        try:
            yield contender
        finally:
            contender.end()


def _live(payload: bytes, fds: Sequence[int]) -> None:
    """Do what a caller's process is for."""
    opened: Opened = pickle.loads(payload)
    turns: dict[bytes, Turn] = {}
    with Connection(fds[0]) as connection, opened() as caller:
        gc.collect()
        gc.freeze()  # as the harness does where the others are
        connection.send((None, ""))
        while (order := connection.recv()) is not None:
            connection.send(_outcome(turns, caller, *order))


def _outcome(
    turns: dict[bytes, Turn], caller: Caller, recipe: Recipe, number: int, cores: set[int]
) -> tuple[Samples | None, str]:
    """Run one turn; return its figures, or else what went wrong."""
    pin(os.getpid(), cores)
    gc.collect()
    try:
        key = pickle.dumps(recipe)
        turn = turns[key] if key in turns else turns.setdefault(key, recipe(caller))
        return turn(number), ""
    except Exception:  # noqa: BLE001 - the harness is told
        return None, traceback.format_exc()
