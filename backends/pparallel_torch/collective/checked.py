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
_NUMBER = 8  #: bytes of a number that stands for a tensor
_NUMBERS = 1 << 8 * _NUMBER
_HEAD = _DIGEST + _NUMBER  #: where the words begin
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
        def finished() -> None:
            run(self)
            if then is not None:
                then()

        finishes = self._native.in_background(finished)
        done = self._collective.last_begun = threading.Event()

        def whole() -> None:
            try:
                finishes()
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
        self._compare_lists("all_gather", outputs, tensor)
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
        given = [f"{self.me} to {to}: {self._kind(each)}" for to, each in enumerate(inputs)]
        taken = [f"{at} to {self.me}: {self._kind(each)}" for at, each in enumerate(outputs)]
        balance = sum(map(_number, given)) - sum(map(_number, taken))
        self._compare("all_to_all", [*inputs, *outputs], balance=balance)
        super().exchange(outputs, inputs)

    @override
    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], how: ReduceOp) -> None:
        self._compare_lists(f"reduce_scatter by {how.name}", inputs, output)
        super().reduce_scatter(output, inputs, how)

    @override
    def barrier(self) -> None:
        self._compare("barrier", [])
        super().barrier()

    def _compare_lists(self, what: str, tensors: Sequence[Tensor], own: Tensor) -> None:
        """Compare a list that is alike in all members, and whether *own* fits into it."""
        kinds = [self._kind(each) for each in tensors]
        fits = self._kind(own) == kinds[self.me]
        self._compare(what, tensors if fits else [own, *tensors], each=len(set(kinds)) > 1)

    def _compare(
        self,
        what: str,
        tensors: Sequence[Tensor],
        *,
        each: bool = False,
        balance: int | None = None,
    ) -> None:
        """Tell the others what this member begins, and hear what they begin.

        Args:
            what: the operation in words.
            tensors: its tensors, all of one kind.
            each: whether they may differ, and their order counts.
            balance: digests of the tensors sent minus those received; the sum over all members
                is 0 modulo 2**64.

        Raises:
            ValueError: it is not the same.
        """
        self._before.wait()
        kinds = [self._kind(tensor) for tensor in tensors]
        on = ", ".join(kinds if each else dict.fromkeys(kinds))
        words = f"{what} on {on}" if on else what
        alike = words if balance is None else what
        said = hashlib.sha256(alike.encode()).digest()
        said += ((balance or 0) % _NUMBERS).to_bytes(_NUMBER) + words.encode()
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
    if sum(int.from_bytes(said[_DIGEST:_HEAD]) for said in all_said) % _NUMBERS:
        begun = (
            f"rank {rank} began {_words(said)}" for rank, said in zip(ranks, all_said, strict=True)
        )
        raise ValueError(
            f"{'; '.join(begun)}, which does not fit together: a tensor that is given has the shape"
            " and dtype of the one that takes it"
        )


def _number(words: str) -> int:
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:_NUMBER])


def _words(said: bytes) -> str:
    return said[_HEAD:].decode(errors="replace").rstrip()
