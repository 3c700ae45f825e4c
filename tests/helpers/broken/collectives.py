"""Broken collectives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from typing_extensions import override

import pparallel_local
from broken.harness import Backends, rejected_by
from pparallel.interfaces.collective import Operation, ReduceOp, Work
from pparallel.plugin import Backend, hookimpl
from pparallel.testing import CollectiveSuite
from pparallel_local import LocalCollectiveConfig
from pparallel_local.collective import LocalCollective

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


class Changed(LocalCollective):
    """Its operations are those of the class ``Changes``, over messages."""

    Changes: type[Operation]

    @override
    def operation(self, tag: int) -> Operation:
        return self.Changes(self, tag, self.ranks, self._position(self.rank))


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
