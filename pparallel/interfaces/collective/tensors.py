"""The operations on tensors, as default algorithms over messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pparallel.interfaces.collective.memory import copied_if_shared, separate
from pparallel.interfaces.collective.messages import Messages, validated, validated_output
from pparallel.interfaces.collective.work import ReduceOp, Work

if TYPE_CHECKING:
    from torch import Tensor


class TensorForms(Messages):
    """Operations on one tensor of each member, or one for each member."""

    def broadcast(self, tensor: Tensor, src: int, async_op: bool = False) -> Work[None] | None:
        """Give all members the tensor of *src*."""
        root = self._position(src)
        mine = validated_output(tensor)
        return self._do(async_op, lambda each: each.broadcast(mine, root))

    def all_reduce(
        self, tensor: Tensor, op: ReduceOp = ReduceOp.SUM, async_op: bool = False
    ) -> Work[None] | None:
        """Replace each member's tensor by the combination of all."""
        mine = validated_output(tensor)
        op.check(mine)
        return self._do(async_op, lambda each: each.all_reduce(mine, op))

    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], op: ReduceOp = ReduceOp.SUM, async_op: bool = False
    ) -> Work[None] | None:
        """Do :meth:`all_reduce` with several tensors in one operation.

        All members give as many, and in the same order tensors of the same shapes and dtypes,
        which may differ from one tensor to the next.
        """
        mine = separate("tensors", [validated_output(each) for each in tensors])
        for each in mine:
            op.check(each)
        return self._do(async_op, lambda each: each.all_reduce_coalesced(mine, op))

    def reduce(
        self, tensor: Tensor, dst: int, op: ReduceOp = ReduceOp.SUM, async_op: bool = False
    ) -> Work[None] | None:
        """Replace the tensor of *dst* by the combination of all; the others keep theirs."""
        root = self._position(dst)
        mine = validated_output(tensor)
        op.check(mine)
        return self._do(async_op, lambda each: each.reduce(mine, root, op))

    def all_gather(
        self, tensor_list: Sequence[Tensor], tensor: Tensor, async_op: bool = False
    ) -> Work[None] | None:
        """Fill *tensor_list* with every member's tensor, by position in the group.

        Members may give tensors of several shapes; the lists of all have these shapes.
        """
        outputs = self._one_output_each("tensor_list", tensor_list)
        me = self._position(self.rank)
        (mine,) = copied_if_shared([validated(tensor)], outputs, (0, me))
        return self._do(async_op, lambda each: each.all_gather(outputs, mine))

    def gather(
        self,
        tensor: Tensor,
        gather_list: Sequence[Tensor] | None = None,
        dst: int = 0,
        async_op: bool = False,
    ) -> Work[None] | None:
        """Fill *gather_list* of *dst* with every member's tensor; elsewhere it is not used."""
        root = self._position(dst)
        mine, into = validated(tensor), None
        if self.rank == dst:
            into = self._one_output_each("gather_list", gather_list, one_shape=True)
            (mine,) = copied_if_shared([mine], into, (0, root))
        return self._do(async_op, lambda each: each.gather(mine, into, root))

    def scatter(
        self,
        tensor: Tensor,
        scatter_list: Sequence[Tensor] | None = None,
        src: int = 0,
        async_op: bool = False,
    ) -> Work[None] | None:
        """Fill each member's tensor with its part of *scatter_list* of *src*."""
        root = self._position(src)
        mine, parts = validated_output(tensor), None
        if self.rank == src:
            parts = self._one_each("scatter_list", scatter_list, one_shape=True)
            parts = copied_if_shared(parts, [mine], (root, 0))
        return self._do(async_op, lambda each: each.scatter(mine, parts, root))

    def reduce_scatter(
        self,
        output: Tensor,
        input_list: Sequence[Tensor],
        op: ReduceOp = ReduceOp.SUM,
        async_op: bool = False,
    ) -> Work[None] | None:
        """Fill each member's *output* with the combination of everyone's input for it.

        Outputs may have several shapes; the lists of all members have these shapes.
        """
        inputs = self._one_each("input_list", input_list)
        mine = validated_output(output)
        op.check(mine)
        inputs = copied_if_shared(inputs, [mine], (self._position(self.rank), 0))
        return self._do(async_op, lambda each: each.reduce_scatter(mine, inputs, op))

    def all_to_all(
        self,
        output_list: Sequence[Tensor],
        input_list: Sequence[Tensor],
        async_op: bool = False,
    ) -> Work[None] | None:
        """Send each member its tensor of *input_list*, and fill *output_list* by sender.

        Tensors may have several shapes; each has that of the output that it comes into.
        """
        outputs = self._one_output_each("output_list", output_list)
        inputs = self._one_each("input_list", input_list)
        me = self._position(self.rank)
        inputs = copied_if_shared(inputs, outputs, (me, me))
        return self._do(async_op, lambda each: each.exchange(outputs, inputs))

    def barrier(self, async_op: bool = False) -> Work[None] | None:
        """Wait until all members are here."""
        return self._do(async_op, lambda each: each.barrier())
