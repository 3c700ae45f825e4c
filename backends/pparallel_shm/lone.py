"""The operations of a group of one member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.interfaces.collective import Operation, ReduceOp
from pparallel_shm.operation import refuse_others

if TYPE_CHECKING:
    from torch import Tensor


class LoneOperation(Operation):
    """Shares no memory with anybody, and refuses the tensors that a group of several refuses."""

    @override
    def broadcast(self, tensor: Tensor, root: int) -> None:
        refuse_others([tensor])

    @override
    def reduce(self, tensor: Tensor, root: int, how: ReduceOp) -> None:
        refuse_others([tensor])

    @override
    def all_reduce_coalesced(self, tensors: Sequence[Tensor], how: ReduceOp) -> None:
        refuse_others(tensors)

    @override
    def gather(self, tensor: Tensor, into: Sequence[Tensor] | None, root: int) -> None:
        refuse_others([tensor, *(into or ())])
        super().gather(tensor, into, root)

    @override
    def scatter(self, tensor: Tensor, parts: Sequence[Tensor] | None, root: int) -> None:
        refuse_others([tensor, *(parts or ())])
        super().scatter(tensor, parts, root)

    @override
    def exchange(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        refuse_others([*outputs, *inputs])
        super().exchange(outputs, inputs)

    @override
    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], how: ReduceOp) -> None:
        refuse_others([output, *inputs])
        super().reduce_scatter(output, inputs, how)
