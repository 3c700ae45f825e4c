"""The workers of an engine: processes that pparallel starts, and threads."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any, NamedTuple, Protocol

from typing_extensions import override

from pparallel.compat.machin import pickle
from pparallel.compat.machin.pool import notes
from pparallel.compat.machin.pool.working import Answering, Asking, Work, serve
from pparallel.runtime import processes
from pparallel.runtime.processes import StartMethod

_MAIN = "pparallel.compat.machin.pool.working"
_PREPARED = "pparallel.compat.machin.pool.prepared"
_FORCE = 1.0  #: seconds that a worker has to end once it was told to


class Worker(Protocol):
    """What an engine needs of a worker: processes and threads of the standard library have it."""

    name: str

    def is_alive(self) -> bool:
        """Return whether it runs."""

    def join(self, timeout: float | None = None) -> object:
        """Wait for its end, at most *timeout* seconds."""


class Duty(NamedTuple):
    """What a worker is for.

    Attributes:
        number: which it is among those of the pool, from 0.
        work: the function that it runs.
        get: takes a task.
        put: puts an answer.
        settings: the other arguments of *work*.
        handle: of the pool's notes.
    """

    number: int
    work: Work
    get: Callable[[], Any]
    put: Callable[[Any], object]
    settings: Sequence[Any]
    handle: notes.Handle

    @property
    def name(self) -> str:
        """What the worker is called."""
        return f"pool-worker-{self.number}"


class WorkerProcess:
    """A worker that is a process; it never runs ``__main__`` again, and ends with its parent.

    Attributes:
        index: its number among those of the pool.
        pid: of its process.
        name: what it is called.
    """

    def __init__(self, index: int, process: processes.Process) -> None:
        process.warns = False  # its pool ends it
        self.index, self.pid, self.name = index, process.pid, process.name
        self._process = process
        self._end: processes.Exit | None = None

    @classmethod
    def start(cls, duty: Duty, method: StartMethod) -> WorkerProcess:
        """Start a worker.

        Raises:
            OSError: there is no process, descriptor or memory to be had.
            SerializationError: the function, the initializer or its arguments cannot be sent.
        """
        get, put = Asking(duty.get, duty.handle), Answering(duty.put)
        data = pickle.dumps((duty.work, get, *duty.settings))
        target, payload = f"{_MAIN}:main", pickle.dumps((put, data))
        process = processes.start(
            target, payload, method=method, name=duty.name, preload=(_MAIN, _PREPARED)
        )
        return cls(duty.number, process)

    @property
    def exitcode(self) -> int | None:
        """Its exit code, or minus the number of the signal that ended it; ``None``: it runs."""
        end = self._ended(0)
        return None if end is None else end.code

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return self._ended(0) is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most *timeout* seconds."""
        self._ended(timeout)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM), if it runs."""
        self._process.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it by force (SIGKILL), if it runs."""
        self._process.signal(signal.SIGKILL)

    def close(self) -> None:
        """Give its descriptors back."""
        self._process.close()

    def _ended(self, timeout: float | None) -> processes.Exit | None:
        if self._end is None:
            self._end = self._process.ended(timeout)
        return self._end


class WorkerThread(threading.Thread):
    """A worker that is a thread of this process.

    Attributes:
        index: its number among those of the pool.
    """

    def __init__(self, duty: Duty) -> None:
        super().__init__(name=duty.name, daemon=True)
        self.index = duty.number
        self._duty = duty

    @override
    def run(self) -> None:
        duty = self._duty
        serve(duty.work, Asking(duty.get, duty.handle), duty.put, duty.settings)


def join_all(workers: Iterable[Worker], patience: float) -> None:
    """Wait for all to end, for *patience* seconds; then end those that are processes by force."""
    late = _late(workers, patience)
    for way in ("terminate", "kill"):
        for each in late:
            getattr(each, way, _nothing)()
        if late:
            late = _late(late, _FORCE)


def terminate_all(workers: Iterable[Worker]) -> None:
    """Tell all that are processes to end."""
    for each in workers:
        if each.is_alive():
            getattr(each, "terminate", _nothing)()


def close_all(workers: Iterable[Worker]) -> None:
    """Give back what is held of those that have ended; others' processes are garbage by then."""
    for each in workers:
        if isinstance(each, WorkerProcess) and not each.is_alive():
            each.close()


def _late(workers: Iterable[Worker], patience: float) -> list[Worker]:
    deadline, running = monotonic() + patience, list(workers)
    for each in running:
        each.join(max(0.0, deadline - monotonic()))
    return [each for each in running if each.is_alive()]


def _nothing() -> None:
    """Stand for what a thread does not have."""
