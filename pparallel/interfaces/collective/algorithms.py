"""The default algorithms of collectives: trees and direct exchange, over isend and irecv."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pparallel.interfaces.collective.work import BackgroundWork, ReduceOp, Work

if TYPE_CHECKING:
    from torch import Tensor

    from pparallel.interfaces.collective.messages import Messages


class Operation:
    """One operation of one group, in one member; its messages carry a tag of their own.

    Arguments have been checked and tensors are detached. Members are counted by their position in
    the group, from 0. What is sent is contiguous; what is received goes into a contiguous tensor
    first where the target is not. A backend that can do better derives a class of its own and
    returns it from :meth:`~pparallel.Collective.operation`; what it does not override goes on
    standing on messages.

    Attributes:
        tag: the tag of the messages, the same in all members; no other operation has it.
        me: this member's position.
        size: the number of members.
    """

    def __init__(self, group: Messages, tag: int, ranks: Sequence[int], me: int) -> None:
        self.tag, self.me, self.size = tag, me, len(ranks)
        self._group, self._ranks = group, ranks

    def start(
        self, run: Callable[[Operation], None], then: Callable[[], None] | None = None
    ) -> Work[None]:
        """Begin *run* without waiting for it; by default in a thread of its own.

        Args:
            run: calls one method of this operation.
            then: what is left to do when that is done, before the work's ``wait()`` returns.
        """

        def whole() -> None:
            run(self)
            if then is not None:
                then()

        return BackgroundWork(whole)

    def send(self, tensor: Tensor, to: int) -> Work[None]:
        """Start to send to the member at position *to*."""
        return self._group.isend(plain(tensor), self._ranks[to], self.tag)

    def receive(self, tensor: Tensor, source: int) -> None:
        """Fill *tensor* with what the member at position *source* sends."""
        buffer = tensor if is_plain(tensor) else tensor.new_empty(tensor.shape)
        self._group.irecv(buffer, self._ranks[source], self.tag).wait()
        if buffer is not tensor:
            tensor.copy_(buffer)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Binomial tree: who has it, sends it on, over halved distances."""
        relative = (self.me - root) % self.size
        distance = 1
        while distance < self.size and not relative & distance:
            distance *= 2
        if relative:
            self.receive(tensor, (relative - distance + root) % self.size)
        pending = []
        while distance := distance // 2:
            if relative + distance < self.size:
                pending.append(self.send(tensor, (relative + distance + root) % self.size))
        for each in pending:
            each.wait()

    def reduce(self, tensor: Tensor, root: int, how: ReduceOp) -> None:
        """Binomial tree, towards the root; only the root's tensor changes."""
        relative = (self.me - root) % self.size
        total = plain(tensor.clone())
        how.divide(total, self.size)
        part = total.new_empty(total.shape)
        distance = 1
        while distance < self.size:
            if relative & distance:
                self.send(total, (relative - distance + root) % self.size).wait()
                return
            if relative + distance < self.size:
                self.receive(part, (relative + distance + root) % self.size)
                how.into(total, part)
            distance *= 2
        tensor.copy_(total)

    def all_reduce(self, tensor: Tensor, how: ReduceOp) -> None:
        """Reduce to the first and broadcast: so all have the same, bit for bit."""
        self.reduce(tensor, 0, how)
        self.broadcast(tensor, 0)

    def all_reduce_coalesced(self, tensors: Sequence[Tensor], how: ReduceOp) -> None:
        """Reduce those of one dtype and device as one, laid out one after another."""
        import torch

        kinds: dict[object, list[Tensor]] = {}
        for each in tensors:
            kinds.setdefault((each.dtype, each.device), []).append(each)
        for alike in kinds.values():
            flat = torch.cat([each.reshape(-1) for each in alike])
            self.all_reduce(flat, how)
            for each, part in zip(alike, flat.split([each.numel() for each in alike]), strict=True):
                each.copy_(part.view(each.shape))

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> None:
        """Everyone sends to everyone what is the same for all."""
        self.exchange(outputs, [tensor] * self.size)

    def gather(self, tensor: Tensor, into: Sequence[Tensor] | None, root: int) -> None:
        """Everyone sends to the root, which alone gives *into*."""
        if into is None:
            self.send(tensor, root).wait()
            return
        for source in self._others():
            self.receive(into[source], source)
        into[root].copy_(tensor)

    def scatter(self, tensor: Tensor, parts: Sequence[Tensor] | None, root: int) -> None:
        """The root, which alone gives *parts*, sends to everyone."""
        if parts is None:
            self.receive(tensor, root)
            return
        pending = [self.send(parts[to], to) for to in self._others()]
        tensor.copy_(parts[root])
        for each in pending:
            each.wait()

    def exchange(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """Everyone sends each other member its input and receives its output."""
        pending = [self.send(inputs[to], to) for to in self._others()]
        for step in range(1, self.size):
            source = (self.me - step) % self.size
            self.receive(outputs[source], source)
        outputs[self.me].copy_(inputs[self.me])
        for each in pending:
            each.wait()

    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], how: ReduceOp) -> None:
        """Exchange directly, and combine in the order of ranks, so that all is repeatable."""
        parts = [output.new_empty(output.shape) for _ in inputs]
        self.exchange(parts, inputs)
        how.combine(parts, parts[0])
        output.copy_(parts[0])

    def barrier(self) -> None:
        """Dissemination: in each round everyone tells the member twice as far away as before."""
        import torch

        token = torch.zeros(1, dtype=torch.uint8)
        distance = 1
        while distance < self.size:
            pending = self.send(token, (self.me + distance) % self.size)
            self.receive(torch.empty_like(token), (self.me - distance) % self.size)
            pending.wait()
            distance *= 2

    def _others(self) -> Iterator[int]:
        """The positions of the others, each member starting with its own neighbour."""
        return ((self.me + step) % self.size for step in range(1, self.size))


def is_plain(tensor: Tensor) -> bool:
    """Return whether the tensor's memory holds its values in order, as they are."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def plain(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy whose memory holds its values in order, as they are."""
    return tensor.resolve_conj().resolve_neg().contiguous()
