"""Processes that a test has do what the members of a world do."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import compat_distributed_programs as programs
import preloads
import pytest
from free_ports import free_ports as free_ports

from pparallel.runtime import processes
from pparallel.testing.patience import PATIENCE, until

HERE = str(Path(__file__).parent)

if HERE not in sys.path:  # the members find their programs by the path of their parent
    sys.path.insert(0, HERE)


class Error(Exception):
    """Raised for what a member raised."""


class Crew:
    """Processes that do what they are told, one thing after another."""

    def __init__(self, size: int, environment: Mapping[str, str]) -> None:
        self.ports = free_ports()
        self.is_stuck = False
        self._ends: list[Connection] = []
        self.processes: list[processes.Process] = []
        for number in range(size):
            mine, its = socket.socketpair()
            with its:
                started = processes.start(
                    "compat_distributed_crew:serve",
                    pickle.dumps(dict(environment)),
                    [its.fileno()],
                    name=f"member {number}",
                    preload=preloads.MEMBERS,
                )
            self.processes.append(started)
            self._ends.append(Connection(mine.detach()))

    def start(self, number: int, program: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Have a process do something."""
        self._ends[number].send((program.__name__, args, kwargs))

    def outcome(self, number: int) -> Any:
        """Return what a process has returned.

        Raises:
            Error: it raised; the message has the type and the text.
        """
        assert self._ends[number].poll(PATIENCE), f"process {number} does not answer"
        value, error, where = self._ends[number].recv()
        if error:
            made = Error(error)
            made.add_note(where)
            raise made
        return value

    def error(self, number: int) -> str:
        """Return the type and the text of what a process has raised."""
        with pytest.raises(Error) as found:
            self.outcome(number)
        return str(found.value)

    def all(self, program: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Have all processes do the same, and return what they return."""
        assert not self.is_stuck, "an earlier test has left the members waiting for one another"
        numbers = range(len(self._ends))
        for number in numbers:
            self.start(number, program, *args, **kwargs)
        found: dict[int, Any] = {}
        self.is_stuck = True
        while missing := [each for each in numbers if each not in found]:
            ready = wait([self._ends[each] for each in missing], PATIENCE)
            assert ready, f"processes {missing} do not answer"
            found |= {each: self.outcome(each) for each in missing if self._ends[each] in ready}
        self.is_stuck = False
        return [found[number] for number in numbers]

    def join(self, ranks: Sequence[int] = range(programs.SIZE), **options: Any) -> None:
        """Have processes make a world, each of its rank."""
        for number, rank in enumerate(ranks):
            self.start(number, programs.join, rank, self.ports, **options)

    def kill(self, number: int) -> None:
        """Kill a process, and wait until it is gone."""
        self.processes[number].signal(signal.SIGKILL)
        until(lambda: self.processes[number].ended() is not None, "it did not end")

    def release(self, number: int) -> processes.Exit | None:
        """Let a process end, and return how it did."""
        self._ends[number].close()
        return self.processes[number].ended(PATIENCE)

    def close(self) -> None:
        """End all."""
        for end, process in zip(self._ends, self.processes, strict=True):
            end.close()
            process.signal(signal.SIGKILL)
            assert process.ended(PATIENCE) is not None
            process.close()


@contextmanager
def crew(size: int = programs.SIZE, **environment: str) -> Iterator[Crew]:
    """Have processes; all are gone at the end."""
    made = Crew(size, environment)
    try:
        yield made
    finally:
        made.close()


def serve(payload: bytes, fds: Sequence[int]) -> None:
    """Do what the test says: what a process of a crew runs."""
    os.environ.update(pickle.loads(payload))
    end = Connection(fds[0])
    while True:
        try:
            name, args, kwargs = end.recv()
        except EOFError:
            return
        try:
            told = (getattr(programs, name)(*args, **kwargs), "", "")
        except BaseException as error:  # noqa: BLE001 - the test is told
            told = (None, f"{type(error).__name__}: {error}", traceback.format_exc())
        end.send(told)
