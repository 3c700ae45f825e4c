"""The operations on several tensors of each member, which torch has removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pparallel.interfaces.collective.memory import separate
from pparallel.interfaces.collective.messages import Messages, validated, validated_output
from pparallel.interfaces.collective.work import ReduceOp, Work

if TYPE_CHECKING:
    from torch import Tensor


class MultiGpuForms(Messages):
    """Operations on a list of tensors of each member: one for each of its GPUs.

    All members give lists of the same length, of tensors of one shape and dtype. They are
    combined here first, communicated once, and spread here again.
    """

    def broadcast_multigpu(
        self, tensor_list: Sequence[Tensor], src: int, async_op: bool = False, src_tensor: int = 0
    ) -> Work[None] | None:
        """Give all tensors of all members the one at *src_tensor* of *src*."""
        root = self._position(src)
        mine = [validated_output(each) for each in _some(tensor_list)]
        first = mine[src_tensor if self.rank == src else 0]
        return self._do(
            async_op, lambda each: each.broadcast(first, root), lambda: _spread(first, mine)
        )

    def all_reduce_multigpu(
        self, tensor_list: Sequence[Tensor], op: ReduceOp = ReduceOp.SUM, async_op: bool = False
    ) -> Work[None] | None:
        """Replace all tensors of all members by the combination of all."""
        mine = [validated_output(each) for each in _some(tensor_list)]
        op.check(mine[0])
        total = _combined(mine, op)
        return self._do(
            async_op, lambda each: each.all_reduce(total, op), lambda: _spread(total, mine)
        )

    def reduce_multigpu(
        self,
        tensor_list: Sequence[Tensor],
        dst: int,
        op: ReduceOp = ReduceOp.SUM,
        async_op: bool = False,
        dst_tensor: int = 0,
    ) -> Work[None] | None:
        """Replace the tensor at *dst_tensor* of *dst* by the combination of all."""
        root = self._position(dst)
        mine = [validated_output(each) for each in _some(tensor_list)]
        op.check(mine[0])
        total = _combined(mine, op)
        target = mine[dst_tensor] if self.rank == dst else total
        return self._do(
            async_op, lambda each: each.reduce(total, root, op), lambda: _spread(total, [target])
        )

    def all_gather_multigpu(
        self,
        output_tensor_lists: Sequence[Sequence[Tensor]],
        input_tensor_list: Sequence[Tensor],
        async_op: bool = False,
    ) -> Work[None] | None:
        """Fill each list of outputs with all tensors of all members.

        With lists of k inputs, input j of the member at position p in the group comes to
        ``output_tensor_lists[i][p * k + j]``, for every i.
        """
        inputs = [validated(each) for each in _some(input_tensor_list)]
        outputs = [[validated_output(each) for each in tensors] for tensors in output_tensor_lists]
        needed = len(inputs) * self.size()
        for tensors in outputs:
            if len(tensors) != needed:
                message = f"each list of outputs has {needed} tensors, not {len(tensors)}"
                raise ValueError(message)
        separate("output_tensor_lists", [each for tensors in outputs for each in tensors])
        packed = _room(inputs[0], (len(inputs), *inputs[0].shape))
        _fill(list(packed), inputs)
        received = [_room(packed, packed.shape) for _ in range(self.size())]

        def deal_out() -> None:
            for tensors in outputs:
                _fill(tensors, [part for each in received for part in each])

        return self._do(async_op, lambda each: each.all_gather(received, packed), deal_out)


def _some(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    if not tensors:
        message = "give at least one tensor"
        raise ValueError(message)
    return tensors


def _combined(tensors: Sequence[Tensor], op: ReduceOp) -> Tensor:
    """Return the combination of this member's tensors, on the device of the first."""
    first = tensors[0]
    total = _room(first, first.shape)
    op.combine([each.to(first.device) for each in tensors], total)
    return total


def _room(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor that other threads may write to, in inference mode or not."""
    import torch

    with torch.inference_mode(False):
        return like.new_empty(shape)


def _spread(tensor: Tensor, over: Sequence[Tensor]) -> None:
    for each in over:
        if each is not tensor:
            each.copy_(tensor)


def _fill(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
