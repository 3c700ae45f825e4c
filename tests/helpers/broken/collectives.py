"""Broken collectives."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

import pparallel_local
from broken.harness import Backends, rejected_by
from pparallel.interfaces.collective import USER_TAGS, Operation, ReduceOp, Work
from pparallel.plugin import Backend, hookimpl
from pparallel.testing import CollectiveSuite
from pparallel_local import LocalCollectiveConfig
from pparallel_local.collective import LocalCollective
from pparallel_local.collective.messages import Offer

if TYPE_CHECKING:
    from torch import Tensor

backends = Backends(LocalCollectiveConfig, pparallel_local)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return backends.records


class Done(Work[Any]):
    """A handle that says it is done."""

    def __init__(self, result: Any = None) -> None:
        self._result = result

    @override
    def wait(self, timeout: float | None = None) -> Any:
        return self._result

    @override
    def is_completed(self) -> bool:
        return True


class DropsOneInAThousand(LocalCollective):
    _sent = 0

    @override
    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work[None]:
        self._sent += 1
        if self._sent % 1000 == 0:
            return Done()
        return super().isend(tensor, dst, tag)


@rejected_by("test_order_of_messages")
class TestDropsOneInAThousand(CollectiveSuite):
    config = backends.config(DropsOneInAThousand)


class SwapsTwoMessages(LocalCollective):
    """Every hundredth message is overtaken by the next."""

    _sent = 0
    _held: Tensor | None = None

    @override
    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work[None]:
        self._sent += 1
        if self._sent % 100 == 0:
            self._held = tensor.clone()
            return Done()
        work = super().isend(tensor, dst, tag)
        if self._held is not None:
            super().isend(self._held, dst, tag).wait()
            self._held = None
        return work


@rejected_by("test_order_of_messages")
class TestSwapsTwoMessages(CollectiveSuite):
    config = backends.config(SwapsTwoMessages)


class MixesTags(LocalCollective):
    """Has few lanes, and lets several tags share one."""

    @override
    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work[None]:
        return super().isend(tensor, dst, tag % 3)

    @override
    def irecv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Work[int]:
        return super().irecv(tensor, src, tag % 3)


@rejected_by("test_tags_are_not_mixed", "test_many_threads")
class TestMixesTags(CollectiveSuite):
    config = backends.config(MixesTags)


class MixesGroups(LocalCollective):
    """Knows a group by its members alone."""

    @override
    def new_group(self, ranks: Sequence[int]) -> Self:
        self._made.clear()
        return super().new_group(ranks)


@rejected_by("test_groups_are_not_mixed")
class TestMixesGroups(CollectiveSuite):
    config = backends.config(MixesGroups)


class NamesTheWrongSender(LocalCollective):
    """Says that what came from anyone came from the first of them."""

    class Receive(Work[int]):
        def __init__(self, work: Work[int], source: int) -> None:
            self._work, self._source = work, source

        @override
        def wait(self, timeout: float | None = None) -> int:
            self._work.wait(timeout)
            return self._source

        @override
        def is_completed(self) -> bool:
            return self._work.is_completed()

    @override
    def irecv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Work[int]:
        work = super().irecv(tensor, src, tag)
        first = next(rank for rank in self.ranks if rank != self.rank)
        return work if src is not None else self.Receive(work, first)


@rejected_by("test_any_source")
class TestNamesTheWrongSender(CollectiveSuite):
    config = backends.config(NamesTheWrongSender)


class Changed(LocalCollective):
    """Its operations are those of the class ``Changes``, over messages."""

    Changes: type[Operation]

    @override
    def operation(self, tag: int) -> Operation:
        return self.Changes(self, tag, self.ranks, self._position(self.rank))


class IsNotTheSameEverywhere(Changed):
    """Each member sums for itself, beginning with its own."""

    class Changes(Operation):
        @override
        def all_reduce(self, tensor: Tensor, how: ReduceOp) -> None:
            parts = [tensor.new_empty(tensor.shape) for _ in range(self.size)]
            how.divide(tensor, self.size)
            self.exchange(parts, [tensor] * self.size)
            for step in range(1, self.size):
                how.into(tensor, parts[(self.me + step) % self.size])


@rejected_by("test_all_reduce_is_the_same_everywhere")
class TestIsNotTheSameEverywhere(CollectiveSuite):
    config = backends.config(IsNotTheSameEverywhere)


class MissesOneMember(Changed):
    """Counts members by powers of two."""

    class Changes(Operation):
        @override
        def reduce(self, tensor: Tensor, root: int, how: ReduceOp) -> None:
            left_out = self.size & (self.size - 1) and (self.me - root) % self.size == self.size - 1
            super().reduce(tensor.clone().zero_() if left_out else tensor, root, how)


@rejected_by("test_operations")
class TestMissesOneMember(CollectiveSuite):
    config = backends.config(MissesOneMember)


class CombinesTwice(Changed):
    """The root of a reduction adds its own once more at the end."""

    class Changes(Operation):
        @override
        def reduce(self, tensor: Tensor, root: int, how: ReduceOp) -> None:
            mine = tensor.clone()
            super().reduce(tensor, root, how)
            if self.me == root and self.size > 1:
                how.into(tensor, mine)


@rejected_by("test_operations")
class TestCombinesTwice(CollectiveSuite):
    config = backends.config(CombinesTwice)


class ReducesInPlace(Changed):
    """What is reduced leaves partial results in members other than the root."""

    class Changes(Operation):
        @override
        def reduce(self, tensor: Tensor, root: int, how: ReduceOp) -> None:
            how.divide(tensor, self.size)
            if self.me == root:
                for source in self._others():
                    part = tensor.new_empty(tensor.shape)
                    self.receive(part, source)
                    how.into(tensor, part)
            else:
                self.send(tensor, root).wait()
                how.into(tensor, tensor.clone())


@rejected_by("test_operations")
class TestReducesInPlace(CollectiveSuite):
    config = backends.config(ReducesInPlace)


class DividesLast(Changed):
    """Adds all values, and divides their sum."""

    class Changes(Operation):
        @override
        def reduce(self, tensor: Tensor, root: int, how: ReduceOp) -> None:
            averages = how is ReduceOp.AVG
            super().reduce(tensor, root, ReduceOp.SUM if averages else how)
            if averages and self.me == root:
                tensor.div_(self.size)


@rejected_by("test_means_of_large_values")
class TestDividesLast(CollectiveSuite):
    config = backends.config(DividesLast)


class CountsByElements(Changed):
    """Deals out what is exchanged by the number of elements of one tensor, which may be none."""

    class Changes(Operation):
        @override
        def exchange(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
            if not outputs[0].numel():
                raise ValueError("zip() argument 2 is shorter than argument 1")
            super().exchange(outputs, inputs)


@rejected_by("test_unusual_forms")
class TestCountsByElements(CollectiveSuite):
    config = backends.config(CountsByElements)


class FindsOutTooLate(LocalCollective):
    """Combines what torch cannot combine, and looks at that only where it is combined."""

    @override
    def reduce(
        self, tensor: Tensor, dst: int, op: ReduceOp = ReduceOp.SUM, async_op: bool = False
    ) -> Work[None] | None:
        root = self._position(dst)
        return self._do(async_op, lambda each: Operation.reduce(each, tensor.detach(), root, op))


@rejected_by("test_unusual_dtypes", "test_tensors_that_cannot_be_sent")
class TestFindsOutTooLate(CollectiveSuite):
    config = backends.config(FindsOutTooLate)


class ReturnsAnAlias(LocalCollective):
    """A member's own object needs no copy, it thinks."""

    @override
    def all_gather_object(self, obj: Any) -> list[Any]:
        found = super().all_gather_object(obj)
        found[self._position(self.rank)] = obj
        return found


@rejected_by("test_objects")
class TestReturnsAnAlias(CollectiveSuite):
    config = backends.config(ReturnsAnAlias)


class ReadsLate(LocalCollective):
    """The sender goes on while its tensor has not been read."""

    class Offer(Offer):
        @override
        def wait(self, timeout: float | None = None) -> None:
            return

    @override
    def post(self, tensor: Tensor, dst: int, tag: int) -> Work[None]:
        offer = self.Offer(tensor)
        self.opened().send(offer, self.rank, dst, tag)
        return offer


@rejected_by("test_what_was_sent_may_be_changed")
class TestReadsLate(CollectiveSuite):
    config = backends.config(ReadsLate)


class IgnoresStrides(LocalCollective):
    """Sends the memory that begins where the tensor does."""

    @override
    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work[None]:
        packed = tensor.new_empty(tensor.shape).stride()
        return super().isend(tensor.as_strided(tensor.shape, packed), dst, tag)


@rejected_by("test_messages")
class TestIgnoresStrides(CollectiveSuite):
    config = backends.config(IgnoresStrides)


class LosesTheImaginaryPart(LocalCollective):
    @override
    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work[None]:
        return super().isend(tensor.real.to(tensor.dtype), dst, tag)


@rejected_by("test_messages")
class TestLosesTheImaginaryPart(CollectiveSuite):
    config = backends.config(LosesTheImaginaryPart)


class CountsTheRootInItsGroup(LocalCollective):
    """Takes ``src`` for a position, which in the group of all is the same."""

    @override
    def broadcast(self, tensor: Tensor, src: int, async_op: bool = False) -> Work[None] | None:
        return super().broadcast(tensor, self.ranks[src % self.size()], async_op)


@rejected_by("test_groups")
class TestCountsTheRootInItsGroup(CollectiveSuite):
    config = backends.config(CountsTheRootInItsGroup)


class LeavesTheBarrierEarly(Changed):
    """Tells its neighbour, and waits for its neighbour alone."""

    class Changes(Operation):
        @override
        def barrier(self) -> None:
            import torch

            token = torch.zeros(1)
            self.send(token, (self.me + 1) % self.size)
            self.receive(token.clone(), (self.me - 1) % self.size)


@rejected_by("test_barrier")
class TestLeavesTheBarrierEarly(CollectiveSuite):
    config = backends.config(LeavesTheBarrierEarly)


class ForgetsAWaiter(LocalCollective):
    """Closing wakes whoever is in an operation, and nobody who waits for a message."""

    @override
    def close(self) -> None:
        for place in self._room._places.values() if self._room else ():
            if self.rank in place.ranks:
                place._receives[self.rank].remove(lambda *_: True)
        super().close()


@rejected_by("test_close_wakes")
class TestForgetsAWaiter(CollectiveSuite):
    patience = 0.1
    config = backends.config(ForgetsAWaiter)


class SwallowsALoss(LocalCollective):
    """Nobody is told of a member that leaves."""

    @override
    def close(self) -> None:
        if self._room is not None:
            self.group.forget(self._job_ended)


@rejected_by("test_a_lost_member", "test_nobody_is_left")
class TestSwallowsALoss(CollectiveSuite):
    config = backends.config(SwallowsALoss)


class ReturnsEarly(LocalCollective):
    """The handle of an operation is done at once."""

    @override
    def broadcast(self, tensor: Tensor, src: int, async_op: bool = False) -> Work[None] | None:
        work = super().broadcast(tensor, src, async_op)
        return None if work is None else Done()


@rejected_by("test_a_handle_is_not_done_before_its_operation")
class TestReturnsEarly(CollectiveSuite):
    config = backends.config(ReturnsEarly)


class LeaksAThread(LocalCollective):
    """Each operation in the background leaves a thread that nothing ends."""

    @override
    def all_reduce(
        self, tensor: Tensor, op: ReduceOp = ReduceOp.SUM, async_op: bool = False
    ) -> Work[None] | None:
        if async_op:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().all_reduce(tensor, op, async_op)


@rejected_by("test_operations_overlap")
class TestLeaksAThread(CollectiveSuite):
    patience = 0.1
    config = backends.config(LeaksAThread)


class FillsWhatDoesNotFit(LocalCollective):
    """Looks at the number of elements only."""

    @override
    def irecv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Work[int]:
        if tensor.shape == (4, 3) and tag < USER_TAGS:
            tensor = tensor.view(3, 4)
        return super().irecv(tensor, src, tag)


@rejected_by("test_what_does_not_fit")
class TestFillsWhatDoesNotFit(CollectiveSuite):
    config = backends.config(FillsWhatDoesNotFit)


class WaitsForEver(LocalCollective):
    """The time-out of the config is not for operations in the background."""

    @override
    def operation(self, tag: int) -> Operation:
        self.config = self.config.model_copy(update={"timeout": 1e6})
        return super().operation(tag)


@rejected_by("test_timeout")
class TestWaitsForEver(CollectiveSuite):
    patience = 0.1
    config = backends.config(WaitsForEver)
