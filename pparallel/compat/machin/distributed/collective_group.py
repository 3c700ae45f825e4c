"""Members of a world that send one another tensors and combine them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import torch.distributed
from torch import Tensor
from typing_extensions import override

from pparallel.interfaces.collective import Collective, ReduceOp, Work

T = TypeVar("T")

logger = logging.getLogger(__name__)

SUM: Any = torch.distributed.ReduceOp.SUM

NOBODY = -1  #: the sender of what a process receives in a group that it is not in, as in torch


class CollectiveGroup:
    """Some members of a world, as ``World.create_collective_group`` returns it.

    It does what a :class:`pparallel.Collective` does, whose members are called by their ranks in
    the world, ``src`` and ``dst`` too. Tensors may have any dtype, complex ones too; outputs are
    written in place. With ``async_op=True`` an operation returns a work at once, whose ``wait()``
    returns when it is done. All members begin the same operations in the same order.

    In a process that is not among the members every operation does nothing, as in torch, and says
    so in the log.

    Attributes:
        native: what does the work; ``None`` in a process that is not a member.
        current_rank: this member's position in the group; ``None`` if it is none.
        when_destroyed: called when this member has left the group.
    """

    def __init__(self, group: Collective | None, current_relative_rank: int | None) -> None:
        """Wrap what does the work.

        Args:
            group: an open collective; ``None`` in a process that is not among its members.
            current_relative_rank: the position of this member in it.
        """
        self.native = group
        self.current_rank = current_relative_rank
        self.when_destroyed: Callable[[], None] = lambda: None

    @override
    def __reduce__(self) -> NoReturn:
        message = "a CollectiveGroup is not picklable: create it in each process"
        raise RuntimeError(message)

    # -- messages -----------------------------------------------------------------------------

    def send(self, tensor: Tensor, dst: int, tag: int = 0) -> None:
        """Send *tensor* to rank *dst*; it may be changed when this returns.

        Raises:
            PeerLostError: *dst* has ended.
            ValueError: it is this member, or not in the group.
        """
        self._do(lambda group: group.send(tensor, dst, tag))

    def recv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> int:
        """Receive into *tensor* from rank *src*, or from any; return the sender's rank.

        Raises:
            CallTimeoutError: nothing came within the group's time-out.
            PeerLostError: *src* has ended, or all others have.
            ValueError: what was sent has another shape or dtype.
        """
        found = self._do(lambda group: group.recv(tensor, src, tag))
        return NOBODY if found is None else found

    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work[Any]:
        """As :meth:`send`, but return its work at once."""
        return self._do(lambda group: group.isend(tensor, dst, tag)) or _NotDone()

    def irecv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Work[int]:
        """As :meth:`recv`, but return its work at once, whose ``wait()`` returns the rank."""
        return self._do(lambda group: group.irecv(tensor, src, tag)) or _NotDone()

    # -- operations ---------------------------------------------------------------------------

    def broadcast(self, tensor: Tensor, src: int, async_op: bool = False) -> Work[None] | None:
        """Give all members the tensor of rank *src*."""
        return self._do(lambda group: group.broadcast(tensor, src, async_op))

    def all_reduce(
        self, tensor: Tensor, op: Any = SUM, async_op: bool = False
    ) -> Work[None] | None:
        """Replace each member's tensor by the combination of all, the same bit for bit."""
        return self._do(lambda group: group.all_reduce(tensor, _native(op), async_op))

    def reduce(
        self, tensor: Tensor, dst: int, op: Any = SUM, async_op: bool = False
    ) -> Work[None] | None:
        """Replace the tensor of rank *dst* by the combination of all; the others keep theirs."""
        return self._do(lambda group: group.reduce(tensor, dst, _native(op), async_op))

    def all_gather(
        self, tensor_list: Sequence[Tensor], tensor: Tensor, async_op: bool = False
    ) -> Work[None] | None:
        """Fill *tensor_list* with every member's tensor, by position in the group."""
        return self._do(lambda group: group.all_gather(tensor_list, tensor, async_op))

    def gather(
        self,
        tensor: Tensor,
        gather_list: Sequence[Tensor] | None,
        dst: int = 0,
        async_op: bool = False,
    ) -> Work[None] | None:
        """Fill *gather_list* of rank *dst* with every member's tensor; the others give None."""
        return self._do(lambda group: group.gather(tensor, gather_list, dst, async_op))

    def scatter(
        self,
        tensor: Tensor,
        scatter_list: Sequence[Tensor] | None = None,
        src: int = 0,
        async_op: bool = False,
    ) -> Work[None] | None:
        """Fill each member's tensor with its part of *scatter_list* of rank *src*."""
        return self._do(lambda group: group.scatter(tensor, scatter_list, src, async_op))

    def barrier(self, async_op: bool = False) -> Work[None] | None:
        """Wait until all members are here."""
        return self._do(lambda group: group.barrier(async_op))

    # -- operations on several tensors of each member -----------------------------------------

    def broadcast_multigpu(
        self,
        tensor_list: Sequence[Tensor],
        src: int,
        async_op: bool = False,
        src_tensor: int = 0,
    ) -> Work[None] | None:
        """Give all tensors of all members the one at *src_tensor* of rank *src*."""
        return self._do(
            lambda group: group.broadcast_multigpu(tensor_list, src, async_op, src_tensor)
        )

    def all_reduce_multigpu(
        self, tensor_list: Sequence[Tensor], op: Any = SUM, async_op: bool = False
    ) -> Work[None] | None:
        """Replace all tensors of all members by the combination of all."""
        return self._do(lambda group: group.all_reduce_multigpu(tensor_list, _native(op), async_op))

    def reduce_multigpu(
        self,
        tensor_list: Sequence[Tensor],
        dst: int,
        op: Any = SUM,
        async_op: bool = False,
        dst_tensor: int = 0,
    ) -> Work[None] | None:
        """Replace the tensor at *dst_tensor* of rank *dst* by the combination of all."""
        return self._do(
            lambda group: group.reduce_multigpu(tensor_list, dst, _native(op), async_op, dst_tensor)
        )

    def all_gather_multigpu(
        self,
        output_tensor_lists: Sequence[Sequence[Tensor]],
        input_tensor_list: Sequence[Tensor],
        async_op: bool = False,
    ) -> Work[None] | None:
        """Fill each list of outputs with all tensors of all members.

        With k inputs each, input j of the member at position p in the group comes to
        ``output_tensor_lists[i][p * k + j]``, for every i.
        """
        return self._do(
            lambda group: group.all_gather_multigpu(
                output_tensor_lists, input_tensor_list, async_op
            )
        )

    # -- the group ----------------------------------------------------------------------------

    def destroy(self) -> None:
        """Leave the group; safe to call again."""
        if self.native is not None:
            self.native.destroy()
            self.when_destroyed()

    def size(self) -> int:
        """Return the number of members; -1 in a process that is none."""
        return NOBODY if self.native is None else self.native.size()

    def _do(self, operation: Callable[[Collective], T]) -> T | None:
        if self.native is None:
            logger.warning("this process is not in the group: what it was asked to do is not done")
            return None
        return operation(self.native)


class _NotDone(Work[int]):
    """A message of a group that this process is not in."""

    @override
    def wait(self, timeout: float | None = None) -> int:
        return NOBODY

    @override
    def is_completed(self) -> bool:
        return True


def _native(op: Any) -> ReduceOp:
    """Return what torch's *op* is here."""
    if isinstance(op, ReduceOp):
        return op
    name = getattr(getattr(op, "op", op), "name", str(op))
    if name not in ReduceOp.__members__:
        message = f"op {op!r} is not known here; choose one of {', '.join(ReduceOp.__members__)}"
        raise ValueError(message)
    return ReduceOp[name]
