"""References to tensors instead of copies: shared CPU memory and CUDA IPC.

torch's own handles for CPU memory need either a helper process or a thread that hands out
descriptors, and one setting for the whole program. On Linux neither is needed: a process of the
same user opens the sender's descriptor through ``/proc``.
"""

from __future__ import annotations

import atexit
import functools
import os
from typing import TYPE_CHECKING, Any

from pparallel.runtime import lending, reopening

if TYPE_CHECKING:
    import torch

    from pparallel_serializers.outofband import Reduction


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


def reduce_cuda(tensor: torch.Tensor) -> Reduction:
    """Return torch's own reduction of a CUDA tensor to an IPC handle.

    CUDA does not pass on what another process has sent: of that a copy is sent.
    """
    import torch
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
    parameter = isinstance(tensor, torch.nn.Parameter)
    state = (parameter, tensor.requires_grad, dict(tensor.__dict__))
    return load_cuda, (function, args, *state)


@functools.cache
def _tidy_at_the_end() -> None:
    """Have the counts of who uses this process's tensors removed from ``/dev/shm``."""
    import torch

    atexit.register(torch.cuda.ipc_collect)


def load_cuda(
    function: Any, args: tuple[Any, ...], parameter: bool, requires_grad: bool, attributes: Any
) -> torch.Tensor:
    """Return the tensor that :func:`reduce_cuda` refers to."""
    import torch

    tensor: torch.Tensor = function(*args)
    if parameter:
        tensor = torch.nn.Parameter(tensor, requires_grad)
    else:
        tensor.requires_grad_(requires_grad)
    tensor.__dict__.update(attributes)
    return tensor
