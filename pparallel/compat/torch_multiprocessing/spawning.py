"""Processes that run one function together: they end together too."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from pparallel.builder import build, load
from pparallel.compat.torch_multiprocessing.encoding import refusing_graphs
from pparallel.compat.torch_multiprocessing.ownership import SERIALIZER
from pparallel.compat.torch_multiprocessing.running import run
from pparallel.errors import SerializationError
from pparallel.interfaces.launcher import LaunchContext, LauncherConfig, StartMethod
from pparallel.interfaces.pool import name_of

_LAUNCHER = {"backend": "process", "serializer": SERIALIZER}


class ProcessContext:
    """Processes that run. Any thread may join.

    Attributes:
        processes: the processes, by index, with ``pid``, ``name``, ``exitcode``, ``is_alive()``,
            ``join(timeout)``, ``terminate()`` and ``kill()``.
    """

    def __init__(self, context: LaunchContext) -> None:
        self._context = context
        self.processes = context.processes

    def pids(self) -> list[int]:
        """Return the process id of each process."""
        return self._context.pids()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait until all processes have ended, or one has failed.

        In that case the others are told to stop, have a moment to do so, and are ended by force.

        Args:
            timeout: seconds; ``None`` for no limit.
            grace_period: seconds that the others have to end when one has failed, ``None``: 1.5.

        Returns:
            True when all have ended, False when the time is over and some still run.

        Raises:
            ProcessRaisedException: the function raised in a process; the cause is what it raised.
            ProcessExitedException: a process was ended by a signal or has ended itself, with an
                exit code other than 0 or before its function had returned.
        """
        if grace_period is not None:
            self._context.grace = grace_period
        try:
            return self._context.join(timeout)
        except Exception as error:
            rank = self._context.failed_rank
            if rank is None:
                raise
            from pparallel.compat.torch_multiprocessing.errors import raised

            raise raised(self._context, rank, error) from error


class SpawnContext(ProcessContext):
    """What :func:`spawn` and :func:`start_processes` return."""


def spawn(
    fn: Callable[..., object],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> SpawnContext | None:
    """Run ``fn(index, *args)`` in *nprocs* processes that are fresh interpreters.

    Args:
        fn: what each runs; what it returns is not wanted.
        args: what follows the index. Tensors in shared memory stay shared, others are copied;
            objects of :mod:`multiprocessing` may be among them.
        nprocs: how many, at least 1.
        join: wait for them.
        daemon: the program does not wait for them as it ends, and takes them along.
        start_method: only ``spawn``; for others there is :func:`start_processes`.

    Returns:
        ``None`` after *join*, else a context to join them with.

    Raises:
        ProcessException: with *join*, one has failed; see :meth:`ProcessContext.join`.
        RuntimeError: a tensor among the arguments is in the midst of a graph.
        SerializationError: the function or an argument cannot be sent.
        ValueError: *nprocs* is less than 1.
    """
    if start_method != "spawn":
        message = (
            f"spawn starts processes by 'spawn', not by {start_method!r}:"
            f" call start_processes(..., start_method={start_method!r})"
        )
        warnings.warn(message, FutureWarning, stacklevel=2)
    return start_processes(fn, args, nprocs, join, daemon)


def start_processes(
    fn: Callable[..., object],
    args: Sequence[Any] = (),
    nprocs: int | None = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: StartMethod = "spawn",
) -> SpawnContext | None:
    """Run ``fn(index, *args)`` in processes that start by *start_method*; see :func:`spawn`.

    Args:
        fn: what each runs.
        args: what follows the index.
        nprocs: how many; ``None``: one for each device, at least one.
        join: wait for them.
        daemon: the program does not wait for them as it ends, and takes them along.
        start_method: ``spawn``, ``forkserver`` or ``fork``.

    Raises:
        ValueError: there is no such start method.
    """
    with refusing_graphs(), build(load(LauncherConfig, _LAUNCHER)) as launcher:
        try:
            started = launcher.spawn(
                run, (fn, tuple(args)), nprocs, join=False, daemon=daemon, start_method=start_method
            )
        except SerializationError as error:
            error.locate({"[1][0]": name_of(fn), "[1][1]": "args"})
            raise
    context = SpawnContext(started)
    if not join:
        return context
    context.join()
    return None
