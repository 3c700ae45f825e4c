"""The default algorithms of collectives: trees and direct exchange, over isend and irecv.

Members are counted by their position in the group, from 0. Tensors are given detached. What is
sent is contiguous; what is received goes into a contiguous tensor first where the target is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pparallel.interfaces.collective.work import ReduceOp

if TYPE_CHECKING:
    from torch import Tensor

    from pparallel.interfaces.collective.messages import Messages
    from pparallel.interfaces.collective.work import Work


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective operation of one group: its messages carry a tag of their own."""

    group: Messages
    tag: int
    ranks: Sequence[int]
    me: int

    def send(self, tensor: Tensor, to: int) -> Work[None]:
        """Start to send to the member at position *to*."""
        return self.group.isend(_plain(tensor), self.ranks[to], self.tag)

    def receive(self, tensor: Tensor, source: int) -> None:
        """Fill *tensor* with what the member at position *source* sends."""
        plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
        buffer = tensor if plain else tensor.new_empty(tensor.shape)
        self.group.irecv(buffer, self.ranks[source], self.tag).wait()
        if buffer is not tensor:
            tensor.copy_(buffer)

    def others(self) -> Iterator[int]:
        """The positions of the others, each member starting with its own neighbour."""
        size = len(self.ranks)
        return ((self.me + step) % size for step in range(1, size))


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory holds its values in order, conjugated or not."""
    return tensor.resolve_conj().resolve_neg().contiguous()


def broadcast(op: Operation, tensor: Tensor, root: int) -> None:
    """Binomial tree: who has it, sends it on, over halved distances."""
    size = len(op.ranks)
    relative = (op.me - root) % size
    distance = 1
    while distance < size and not relative & distance:
        distance *= 2
    if relative:
        op.receive(tensor, (relative - distance + root) % size)
    pending = []
    while distance := distance // 2:
        if relative + distance < size:
            pending.append(op.send(tensor, (relative + distance + root) % size))
    for each in pending:
        each.wait()


def reduce(op: Operation, tensor: Tensor, root: int, how: ReduceOp) -> None:
    """Binomial tree, towards the root; only the root's tensor changes."""
    size = len(op.ranks)
    relative = (op.me - root) % size
    total = _plain(tensor.clone())
    part = total.new_empty(total.shape)
    distance = 1
    while distance < size:
        if relative & distance:
            op.send(total, (relative - distance + root) % size).wait()
            return
        if relative + distance < size:
            op.receive(part, (relative + distance + root) % size)
            how.into(total, part)
        distance *= 2
    how.finish(total, size)
    tensor.copy_(total)


def gather(op: Operation, tensor: Tensor, into: Sequence[Tensor] | None, root: int) -> None:
    """Everyone sends to the root."""
    if into is None:
        op.send(tensor, root).wait()
        return
    for source in op.others():
        op.receive(into[source], source)
    into[root].copy_(tensor)


def scatter(op: Operation, tensor: Tensor, parts: Sequence[Tensor] | None, root: int) -> None:
    """The root sends to everyone."""
    if parts is None:
        op.receive(tensor, root)
        return
    pending = [op.send(parts[to], to) for to in op.others()]
    tensor.copy_(parts[root])
    for each in pending:
        each.wait()


def exchange(op: Operation, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Everyone sends each other member its input and receives its output."""
    pending = [op.send(inputs[to], to) for to in op.others()]
    for step in range(1, len(op.ranks)):
        source = (op.me - step) % len(op.ranks)
        op.receive(outputs[source], source)
    outputs[op.me].copy_(inputs[op.me])
    for each in pending:
        each.wait()


def reduce_scatter(op: Operation, output: Tensor, inputs: Sequence[Tensor], how: ReduceOp) -> None:
    """Exchange directly, and combine in the order of ranks, so that all is repeatable."""
    parts = [output.new_empty(output.shape) for _ in inputs]
    exchange(op, parts, inputs)
    total = parts[0]
    for part in parts[1:]:
        how.into(total, part)
    how.finish(total, len(parts))
    output.copy_(total)


def barrier(op: Operation) -> None:
    """Dissemination: in each round everyone tells the member twice as far away as before."""
    import torch

    size = len(op.ranks)
    token = torch.zeros(1, dtype=torch.uint8)
    distance = 1
    while distance < size:
        pending = op.send(token, (op.me + distance) % size)
        op.receive(torch.empty_like(token), (op.me - distance) % size)
        pending.wait()
        distance *= 2
