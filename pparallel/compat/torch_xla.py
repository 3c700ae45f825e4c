"""What ``torch_xla.distributed.xla_multiprocessing`` offers, on pparallel's processes.

A device is what ``torch.cuda`` counts, or the CPU; a function that asks for a ``torch.device``
instead of an XLA device needs no other change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pparallel.compat.torch_multiprocessing.spawning import SpawnContext, start_processes
from pparallel.interfaces.launcher import StartMethod
from pparallel.patterns.model_wrapper import MpModelWrapper
from pparallel.patterns.serial_executor import MpSerialExecutor

__all__ = ["MpModelWrapper", "MpSerialExecutor", "spawn"]


def spawn(
    fn: Callable[..., object],
    args: Sequence[Any] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: StartMethod = "spawn",
) -> SpawnContext | None:
    """Run ``fn(index, *args)`` in a process for each device.

    Args:
        fn: what each runs; what it returns is not wanted.
        args: what follows the index.
        nprocs: how many processes; ``None``: as many as there are devices. 1 runs the function in
            the caller.
        join: wait for them.
        daemon: the program does not wait for them as it ends, and takes them along.
        start_method: ``spawn``, ``forkserver`` or ``fork``, which shares the memory of what the
            program has at global scope, such as an :class:`MpModelWrapper`.

    Returns:
        ``None`` when they have been joined, else what ``torch_multiprocessing.spawn`` returns.

    Raises:
        ProcessException: with *join*, a process has failed.
        ValueError: *nprocs* is less than 1, or there is no such start method.
    """
    if nprocs == 1:
        fn(0, *args)
        return None
    return start_processes(fn, args, nprocs, join, daemon, start_method)
