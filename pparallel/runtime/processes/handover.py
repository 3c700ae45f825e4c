"""What objects of :mod:`multiprocessing` need on their way into a process that is being started.

Its locks, queues, pipes and shared values may only be passed to a process as it starts. Pickled,
they ask whoever starts it (the "spawning popen") to take descriptors along; rebuilt, they ask for
those. They also take it that the child has its parent's key, without which neither would accept
the other's connections, and its parent's resource tracker: one of its own would, at its end, unlink
the shared memory of the program that it had attached. The parent's is started before its first
child, as :mod:`multiprocessing` does: the memory may be made, and the module imported, later.

Source: CPython, Lib/multiprocessing/popen_forkserver.py and spawn.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pparallel.runtime.processes import descriptors
from pparallel.runtime.processes.imports import when_loaded


class Kin(NamedTuple):
    """What makes a process a child in the eyes of :mod:`multiprocessing`.

    Attributes:
        authkey: its parent's key; a secret.
        tracker: whether the last descriptor that it is handed is its parent's resource tracker.
    """

    authkey: bytes
    tracker: bool = False

    @classmethod
    def of_this_process(cls) -> Kin | None:
        """Return what a child of this process is told; ``None``: nothing."""
        process: Any = sys.modules.get("multiprocessing.process")
        return None if process is None else cls(bytes(process.current_process().authkey))


class Handed:
    """A descriptor on its way."""

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        """Return the descriptor, which is the caller's own from now on."""
        arrived = _arrived[self._index]
        if arrived is None:
            raise OSError("a descriptor that was handed over is asked for twice")
        _arrived[self._index] = None
        return arrived


class Handover:
    """Stands for what starts a process, while its arguments are pickled.

    Attributes:
        files: the descriptors that the process is to have; closed by :meth:`close`.
    """

    DupFd = Handed

    def __init__(self) -> None:
        self.files: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        """Take a descriptor along; return what ``DupFd`` is made of."""
        self.files.append(descriptors.duplicate(fd))
        return len(self.files) - 1

    @contextmanager
    def of_what_is_pickled(self) -> Iterator[None]:
        """Take along what this thread pickles inside."""
        context: Any = sys.modules.get("multiprocessing.context")
        if context is None:
            yield
            return
        before = context.get_spawning_popen()
        context.set_spawning_popen(self)
        try:
            yield
        finally:
            context.set_spawning_popen(before)

    def kin(self) -> Kin | None:
        """Return what the child is told; takes the resource tracker along."""
        running = tracker()
        kin = Kin.of_this_process()
        if kin is None or running is None:
            return kin
        self.duplicate_for_child(running)
        return kin._replace(tracker=True)

    def close(self) -> None:
        """Close the descriptors, once they have been sent; safe to call again."""
        while self.files:
            os.close(self.files.pop())


def adopt(kin: Kin, files: list[int]) -> None:
    """Be a child of the process that *kin* and *files* are from; takes its tracker from *files*."""
    when_loaded("multiprocessing.process", lambda: _take_key(kin.authkey))
    if kin.tracker:
        fd = files.pop()
        when_loaded("multiprocessing.resource_tracker", lambda: _take_tracker(fd))


@contextmanager
def arriving(files: Sequence[int]) -> Iterator[None]:
    """Let objects that are rebuilt inside have *files*; those that nobody wants are closed."""
    _arrived[:] = files
    try:
        yield
    finally:
        descriptors.close(*(each for each in _arrived if each is not None))
        _arrived.clear()


_arrived: list[int | None] = []


def tracker() -> int | None:
    """Return the descriptor of this process's resource tracker, which is started if need be.

    Returns:
        ``None`` where none runs, and there is no interpreter to start it with.

    Raises:
        OSError: there are no descriptors, no memory, or no process to be had.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        loaded: Any = sys.modules.get("multiprocessing.resource_tracker")
        running: int | None = None if loaded is None else loaded._resource_tracker._fd
        return running
    from multiprocessing import resource_tracker

    return resource_tracker.getfd()


def be_a_fork() -> None:
    """Have :mod:`multiprocessing` know that this process was forked, as its own forks do."""
    process: Any = sys.modules.get("multiprocessing.process")
    util: Any = sys.modules.get("multiprocessing.util")
    if process is not None:
        process._children = set()  # they are its parent's, and not to be joined here
    if util is not None:
        import atexit

        util._finalizer_registry.clear()
        util._run_after_forkers()
        atexit.register(util._exit_function)


def _take_key(authkey: bytes) -> None:
    import multiprocessing.process

    multiprocessing.process.current_process().authkey = authkey


def _take_tracker(fd: int) -> None:
    from multiprocessing import resource_tracker

    resource_tracker._resource_tracker._fd = fd  # type: ignore[attr-defined]
