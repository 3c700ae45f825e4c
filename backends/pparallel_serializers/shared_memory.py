"""References to tensors instead of copies: shared CPU memory and CUDA IPC.

torch's own handles for CPU memory need either a helper process or a thread that hands out
descriptors, and one setting for the whole program. On Linux neither is needed: a process of the
same user opens the sender's descriptor through ``/proc``.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pparallel.runtime import lending, reopening

if TYPE_CHECKING:
    import torch


def handle(storage: torch.UntypedStorage) -> tuple[reopening.Handle, int]:
    """Move *storage* into shared memory and return what another process finds it by.

    That is its file and its length in bytes.
    """
    if storage.device.type != "cpu":
        raise RuntimeError(f"a storage on {storage.device} cannot be shared by itself")
    descriptor, length = storage._share_fd_cpu_()
    lending.note(storage)
    return reopening.handle(descriptor), length


def attach(found: reopening.Handle, length: int) -> torch.UntypedStorage:
    """Return a storage over the memory that :func:`handle` named.

    Raises:
        FileNotFoundError: the sender no longer has it.
        OSError: there is no descriptor left.
    """
    import torch

    descriptor = reopening.reopened(found, os.O_RDWR, "a tensor in shared memory")
    try:
        kind: Any = torch.UntypedStorage
        storage: torch.UntypedStorage = kind._new_shared_fd_cpu(descriptor, length)
        return storage
    finally:
        os.close(descriptor)


def reduce_cuda(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]]:
    """Return torch's own reduction of a CUDA tensor, without its graph, to an IPC handle.

    CUDA does not pass on what another process has sent: of that a copy is sent.
    """
    from torch.multiprocessing.reductions import reduce_tensor

    alone = tensor.detach()
    try:
        function, args = reduce_tensor(alone)
    except RuntimeError as error:
        if "received from another process" not in str(error):
            raise
        alone = alone.clone()
        function, args = reduce_tensor(alone)
    lending.note(alone)
    _tidy_at_the_end()
    return function, args


@functools.cache
def _tidy_at_the_end() -> None:
    """Have the counts of who uses this process's tensors removed from ``/dev/shm``."""
    import torch

    atexit.register(torch.cuda.ipc_collect)
