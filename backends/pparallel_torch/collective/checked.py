"""Operations whose members first compare what they are about to do."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from typing_extensions import override

from pparallel.interfaces.collective import Operation, ReduceOp, Work
from pparallel.interfaces.collective.work import BackgroundWork
from pparallel_torch.collective.operation import NativeOperation

if TYPE_CHECKING:
    from torch import Tensor

    from pparallel_torch.collective.native import NativeGroup
    from pparallel_torch.collective.torch_collective import TorchCollective

_DIGEST = 32  #: bytes
_LONGEST = 512  #: bytes of a digest and of the words that it is of, as far as they go


class CheckedOperation(NativeOperation):
    """Raises ``ValueError`` in all members where they do not mean the same.

    Operations begun by :meth:`start` are done one after another: what is compared must not meet
    what others compare for another operation.
    """

    def __init__(self, collective: TorchCollective, native: NativeGroup, tag: int) -> None:
        super().__init__(collective, native, tag)
        self._before = collective.last_begun

    @override
    def start(
        self, run: Callable[[Operation], None], then: Callable[[], None] | None = None
    ) -> Work[None]:
        done = self._collective.last_begun = threading.Event()

        def whole() -> None:
            try:
                run(self)
                if then is not None:
                    then()
            finally:
                done.set()

        return BackgroundWork(whole)

    @override
    def broadcast(self, tensor: Tensor, root: int) -> None:
        self._compare(f"broadcast from position {root}", [tensor])
        super().broadcast(tensor, root)

    @override
    def all_reduce(self, tensor: Tensor, how: ReduceOp) -> None:
        self._compare(f"all_reduce by {how.name}", [tensor])
        super().all_reduce(tensor, how)

    @override
    def all_reduce_coalesced(self, tensors: Sequence[Tensor], how: ReduceOp) -> None:
        self._compare(f"all_reduce_coalesced by {how.name}", tensors, each=True)
        super().all_reduce_coalesced(tensors, how)

    @override
    def reduce(self, tensor: Tensor, root: int, how: ReduceOp) -> None:
        self._compare(f"reduce by {how.name} to position {root}", [tensor])
        super().reduce(tensor, root, how)

    @override
    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> None:
        self._compare("all_gather", [tensor, *outputs])
        super().all_gather(outputs, tensor)

    @override
    def gather(self, tensor: Tensor, into: Sequence[Tensor] | None, root: int) -> None:
        self._compare(f"gather to position {root}", [tensor, *(into or ())])
        super().gather(tensor, into, root)

    @override
    def scatter(self, tensor: Tensor, parts: Sequence[Tensor] | None, root: int) -> None:
        self._compare(f"scatter from position {root}", [tensor, *(parts or ())])
        super().scatter(tensor, parts, root)

    @override
    def exchange(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        self._compare("all_to_all", [*outputs, *inputs])
        super().exchange(outputs, inputs)

    @override
    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], how: ReduceOp) -> None:
        self._compare(f"reduce_scatter by {how.name}", [output, *inputs])
        super().reduce_scatter(output, inputs, how)

    @override
    def barrier(self) -> None:
        self._compare("barrier", [])
        super().barrier()

    def _compare(self, what: str, tensors: Sequence[Tensor], *, each: bool = False) -> None:
        """Tell the others what this member begins, and hear what they begin.

        Args:
            what: the operation in words.
            tensors: its tensors, all of one kind.
            each: whether they may differ, and their order counts.

        Raises:
            ValueError: it is not the same.
        """
        self._before.wait()
        kinds = [self._kind(tensor) for tensor in tensors]
        on = ", ".join(kinds if each else dict.fromkeys(kinds))
        words = f"{what} on {on}" if on else what
        said = hashlib.sha256(words.encode()).digest() + words.encode()
        mine = torch.frombuffer(bytearray(said[:_LONGEST].ljust(_LONGEST)), dtype=torch.uint8)
        all_said = [torch.empty_like(mine) for _ in self._ranks]
        Operation(self._collective, self.tag, self._ranks, self.me).all_gather(all_said, mine)
        _refuse_differences(self._ranks, [each.numpy().tobytes() for each in all_said])

    def _kind(self, tensor: Tensor) -> str:
        expected = tensor.device.type == self._collective.device_type
        place = "" if expected else f" on the device type {tensor.device.type}"
        return f"{tensor.dtype} of shape {tuple(tensor.shape)}{place}"


def _refuse_differences(ranks: Sequence[int], all_said: Sequence[bytes]) -> None:
    first = all_said[0]
    for rank, said in zip(ranks, all_said, strict=True):
        if said[:_DIGEST] != first[:_DIGEST]:
            there, here = (_words(each) for each in (said, first))
            raise ValueError(
                f"rank {rank} began {there}, which does not fit {here} of rank {ranks[0]}: all"
                " members of a group begin the same operations in the same order, on tensors of"
                " one shape and dtype"
            )


def _words(said: bytes) -> str:
    return said[_DIGEST:].decode(errors="replace").rstrip()
