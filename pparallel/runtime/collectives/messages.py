"""Tensors on their way from one member to another, as bytes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from typing_extensions import Buffer, override

from pparallel.interfaces.collective import Work
from pparallel.runtime.collectives.matching import fill, finish
from pparallel.runtime.memory import writable
from pparallel.runtime.rpc import RpcGroup

if TYPE_CHECKING:
    from torch import Tensor


class Sent(Work[None]):
    """A message that was copied when it was sent: there is nothing left to wait for."""

    @override
    def wait(self, timeout: float | None = None) -> None:
        """Return."""

    @override
    def is_completed(self) -> bool:
        return True


class Came(NamedTuple):
    """A tensor that came: its dtype, its shape, and its memory if it has any elements."""

    dtype: str
    shape: tuple[int, ...]
    memory: memoryview | None

    def give(self, target: Tensor) -> None:
        """Copy it into *target*.

        Raises:
            ValueError: it does not fit.
        """
        import torch

        dtype = getattr(torch, self.dtype)
        if self.memory is None:
            fill(target, torch.empty(self.shape, dtype=dtype))
            return
        memory = writable(self.memory) if self.memory.readonly else self.memory
        fill(target, torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(self.shape))
        finish(target)


def copied(tensor: Tensor, group: RpcGroup) -> list[Buffer]:
    """Return what *tensor* holds, in order and as it is, in memory that may be sent."""
    import torch

    nbytes = math.prod(tensor.shape) * tensor.element_size()
    if not nbytes:
        return []
    memory = group.memory(nbytes)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    whole.view(tensor.dtype).view(tensor.shape).copy_(tensor)
    group.publish(memory)
    return [memory]
